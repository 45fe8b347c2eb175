"""A pause between two fetches: a busy log is read a few times a second and many records at a time, a quiet one at once."""

from __future__ import annotations

import asyncio
from typing import Final

LEAST_S: Final = 0.04
"""A fetch costs broker and reader more than a record does, and a record that comes alone ends a fetch. Less than the 0.1 s after which
the client leaves partitions out whose records haven't been taken."""


class Pace:
    """Waits so that two takings of records are `least_s` apart. Whoever has seen nothing for that long doesn't wait."""

    def __init__(self, least_s: float = LEAST_S) -> None:
        self._least_s = least_s
        self._next = 0.0

    async def wait(self) -> None:
        """Wait until the next records may be taken."""
        left_s = self._next - asyncio.get_running_loop().time()
        if left_s > 0:
            await asyncio.sleep(left_s)

    def took(self, has_records: bool) -> None:
        """Note that records were taken just now, or none."""
        if has_records:
            self._next = asyncio.get_running_loop().time() + self._least_s
