"""Finds the spools of dead incarnations on this machine and sees them through to Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from bus import EventLog
from capture_proxy.spool.journal import Journal, try_lock
from capture_proxy.spool.spool import Spool

log = structlog.get_logger(__name__)


def orphans(root: Path, skip: Collection[str]) -> list[tuple[Path, int]]:
    """The spool directories under `root` that nobody holds, now locked by us, with their locks."""
    if not root.is_dir():
        return []
    others = [path for path in sorted(root.glob("[!.]*")) if path.is_dir() and path.name not in skip]
    return [(path, fd) for path in others if (fd := try_lock(path)) is not None]


class Adopter:
    """Adopts orphans now and then; each is relayed in place, under its own lock, and deleted when Kafka has all of it."""

    def __init__(
        self, root: Path, own: str, bus: EventLog, *, every_s: float, make: Callable[[EventLog, Journal], Spool] = Spool
    ) -> None:
        self._root = root
        self._own = own
        self._bus = bus
        self._every_s = every_s
        self._make = make
        self._task: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self.adopted: list[Spool] = []
        self.unreadable: dict[str, str] = {}
        """Spools that this process can't read (a newer one wrote them, or their bytes are damaged), and why: left where they are."""

    async def adopt_now(self) -> None:
        """Adopts what is there now; returns when it is queued for Kafka. Raises OSError."""
        async with self._one_at_a_time:
            await self._adopt()

    async def start(self) -> None:
        """Adopts what is there now, then goes on looking."""
        await self.adopt_now()
        self._task = asyncio.create_task(self._look(), name="spool-adopter")

    async def stop(self, drain_s: float) -> None:
        """Stops; what isn't acknowledged after `drain_s` waits for the next adopter."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.gather(*(spool.stop(drain_s) for spool in self.adopted))
        self.adopted = []

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self._release_finished()
                await self.adopt_now()
            except OSError as exc:
                log.warning("spool.adoption_failed", root=str(self._root), error=str(exc))

    async def _adopt(self) -> None:
        for directory, fd in await asyncio.to_thread(orphans, self._root, {self._own, *self.unreadable}):
            spool = self._make(self._bus, Journal(directory, fd))
            try:
                # A big spool takes a while to read, but nothing else touches these objects before it is read.
                entries = await asyncio.to_thread(spool.load)
            except Exception as exc:  # whatever is wrong with one spool, the calls of today and the other spools go on
                self.unreadable[directory.name] = repr(exc)
                log.exception("spool.unreadable", directory=str(directory))
                await spool.journal.close(is_done=False)
                continue
            spool.finish_business()
            log.info("spool.adopted", directory=str(directory), entries=entries, unacked=spool.relay.unacked)
            spool.start()
            self.adopted.append(spool)

    async def _release_finished(self) -> None:
        for spool in [s for s in self.adopted if s.relay.unacked == 0]:
            self.adopted.remove(spool)
            await spool.stop(0.0)
