"""What a dead incarnation of this worker left behind: its programs are killed and its directories removed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import structlog

from schemas import ids
from stage_workers.runtimes.docker import reap_containers
from stage_workers.runtimes.instances import reap_instances
from stage_workers.runtimes.processes import Family, kill_family, members
from stage_workers.runtimes.programs import MARKER_VARIABLE

log = structlog.get_logger(__name__)


class StateDirBusyError(Exception):
    """Another worker process lives in the same state directory."""


def owner_of(state_dir: Path, worker_id: str) -> str:
    """What the runtimes of this worker are marked with, in every incarnation.

    Not by names and paths alone: an engine may serve several machines or containers, where they are the same.
    """
    return f"{worker_id}@{ids.digest(f'{_state_id(state_dir)} {state_dir.resolve()}'.encode())[:12]}"


def _state_id(state_dir: Path) -> str:
    """What is drawn once for a state directory, and stays."""
    place = state_dir / "owner.id"
    if not place.exists():
        state_dir.mkdir(parents=True, exist_ok=True)
        # Whole at once, however this process ends. The state directory's lock keeps others from drawing, too.
        drawn = state_dir / "owner.id.new"
        drawn.write_text(uuid.uuid4().hex, encoding="ascii")
        drawn.replace(place)
    return place.read_text(encoding="ascii")


def runtimes_dir(state_dir: Path) -> Path:
    """Where the runtimes of this worker live."""
    return state_dir / "runtimes"


async def reap(state_dir: Path, worker_id: str) -> int:
    """Ends every program, container and instance of earlier incarnations and removes their directories; returns how many it found.

    Call it under the state directory's lock: then whatever bears our mark is an orphan.
    """
    place = runtimes_dir(state_dir).resolve()
    marker = f"{MARKER_VARIABLE}={owner_of(state_dir, worker_id)}".encode()
    family = Family(marker=marker, directory=str(place))
    found = len(await asyncio.to_thread(members, family))
    if found:
        left = await kill_family(family)
        log.warning("orphans.killed", found=found, left=left, place=str(place))
    owner = owner_of(state_dir, worker_id)
    found += await reap_containers(owner) + await reap_instances(owner)
    await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
    return found


async def sweep(state_dir: Path, owner: str, incarnation: str, is_held: Callable[[str], bool]) -> int:
    """Ends what this incarnation runs for no session that it holds (by its runtime's name); returns how much it found.

    That is what a teardown left that failed: an engine was away, a process was stuck.
    """
    found = 0
    for name, path in await asyncio.to_thread(_entries, runtimes_dir(state_dir).resolve()):
        if is_held(name):
            continue
        found += 1
        marker = f"{MARKER_VARIABLE}={owner}/{incarnation}/{name}".encode()
        left = await kill_family(Family(marker=marker, directory=path))
        log.warning("orphan.swept", runtime=name, left=left)
        await asyncio.to_thread(shutil.rmtree, path, ignore_errors=True)
    return found + await reap_containers(
        owner, is_alive=lambda orphan: orphan.incarnation == incarnation and is_held(orphan.runtime)
    )


def _entries(place: Path) -> list[tuple[str, str]]:
    try:
        return [(entry.name, entry.path) for entry in os.scandir(place)]
    except OSError:
        return []


def prune_logs(logs: Path, keep: int) -> int:
    """Removes the logs of all but the `keep` newest sessions; returns how many sessions that were."""
    try:
        ages = sorted((entry.stat().st_mtime_ns, entry.path) for entry in os.scandir(logs))
    except OSError:
        return 0
    old = ages[: max(0, len(ages) - keep)]
    for _age, path in old:
        shutil.rmtree(path, ignore_errors=True)
    return len(old)


@contextmanager
def state_lock(state_dir: Path) -> Iterator[None]:
    """Holds the state directory for this process; the lock goes with the process, however it dies.

    Raises:
        StateDirBusyError: another worker holds it.
    """
    state_dir.mkdir(parents=True, exist_ok=True)
    with (state_dir / "worker.lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StateDirBusyError(
                f"another worker lives in {state_dir}; stop it, or give this one a state directory of its own"
            ) from None
        yield
