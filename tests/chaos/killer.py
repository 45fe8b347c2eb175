"""Carries a plan out on a fleet, in real time; what was done stands in its journal."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.chaos.plan import Blow


class Struck(Protocol):
    """What can be hit."""

    async def strike(self, blow: Blow) -> bool:
        """Do one blow and bring its victim back; False when it was left out."""
        ...


@dataclass(slots=True)
class Killer:
    """Runs through the blows; each has a task of its own, since bringing a victim back takes time."""

    fleet: Struck
    blows: Sequence[Blow]
    journal: Path
    say: Callable[[str], None] = print
    done: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How often each process was hit, by (name, how)."""
    left_out: int = 0
    _under_way: set[asyncio.Task[None]] = field(default_factory=set)

    async def run(self, stop: asyncio.Event) -> None:
        """Hit until the plan is through or `stop` is set; then wait until every victim is back. Raises what a blow raised."""
        began = time.monotonic()
        try:
            for blow in self.blows:
                if await _set_within(stop, began + blow.at_s - time.monotonic()):
                    break
                self._under_way.add(asyncio.create_task(self._strike(blow), name=f"blow-{blow.target.name}"))
                await self._collect(timeout_s=0)
            while self._under_way:
                await self._collect(timeout_s=None)
        finally:
            for task in self._under_way:
                task.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _collect(self, *, timeout_s: float | None) -> None:
        finished, self._under_way = await asyncio.wait(self._under_way, timeout=timeout_s)
        for task in finished:
            task.result()

    async def _strike(self, blow: Blow) -> None:
        self._note(blow, "begun")
        if await self.fleet.strike(blow):
            self.done[blow.target.name, str(blow.how)] += 1
            self._note(blow, "over")
        else:
            self.left_out += 1
            self._note(blow, "left out")

    def _note(self, blow: Blow, what: str) -> None:
        if what != "over":
            self.say(f"storm: {blow}{' (left out)' if what == 'left out' else ''}")
        entry = {"at": time.time_ns() // 1_000_000, "blow": str(blow), "part": blow.target.name, "what": what}
        with self.journal.open("a") as file:
            file.write(json.dumps(entry) + "\n")


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event is set within so many seconds."""
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True
