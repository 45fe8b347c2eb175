"""`polynya doctor --runtime KIND`: what a runtime must do, tried out on this machine, check by check."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import harnesses
from compose.errors import usage
from schemas.task import RuntimeSpec

KINDS = ("local", "docker", "apptainer")
# Small, known to every engine, and with what the checks need inside.
DEFAULT_IMAGES = {"docker": "debian:bookworm-slim", "apptainer": "docker://debian:bookworm-slim"}
Outcome = Literal["ok", "failed", "absent"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One check: how it went (`absent`: this machine can't have it), what it means, and what went wrong."""

    name: str
    outcome: Outcome
    meaning: str
    why: str = ""
    took_s: float = 0.0


async def try_runtime(kind: str, image: str | None, report: Callable[[Tried], None]) -> list[Tried]:
    """Runs every check on a runtime of this machine, and tells each as it is done.

    Raises:
        CommandError: there is no such kind.
    """
    from stage_workers.runtimes import RuntimeFault
    from stage_workers.runtimes.checks import CHECKS, Bench, CheckFailed, NotHere
    from stage_workers.runtimes.factory import Runtimes

    if kind not in KINDS:
        raise usage(f"no runtime {kind!r}", hint=f"one of {', '.join(KINDS)}")
    spec = RuntimeSpec.model_validate({"kind": kind, "image": image or DEFAULT_IMAGES.get(kind)})
    done: list[Tried] = []
    with tempfile.TemporaryDirectory(prefix="polynya-doctor-") as root:
        make = Runtimes(root=Path(root), owner=f"doctor/{Path(root).name}", cache_dir=harnesses.default_cache())
        bench = Bench(make=make, spec=spec)
        try:
            for check in CHECKS:
                started = time.monotonic()
                outcome: Outcome = "ok"
                why = ""
                try:
                    await check.run(bench)
                except NotHere as reason:
                    outcome, why = "absent", str(reason)
                except (CheckFailed, RuntimeFault) as failure:
                    outcome, why = "failed", str(failure)
                except Exception as error:  # noqa: BLE001  # a check's own crash is a verdict, the next one is tried
                    outcome, why = "failed", f"the check crashed: {error!r}"
                took_s = time.monotonic() - started
                done.append(Tried(name=check.name, outcome=outcome, meaning=check.meaning, why=why, took_s=took_s))
                report(done[-1])
                if outcome == "failed" and check is CHECKS[0]:
                    # Without the first there is no runtime at all: the others would say the same.
                    break
        finally:
            await make.close()
    return done
