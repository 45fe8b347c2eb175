"""Which random requests a run makes."""

from __future__ import annotations

import os
import time


def the_seed() -> int:
    """POLYNYA_FUZZ_SEED, a number; `random` explores, and without it every run makes the same requests."""
    given = os.environ.get("POLYNYA_FUZZ_SEED", "1")
    return time.time_ns() % 2**32 if given == "random" else int(given)
