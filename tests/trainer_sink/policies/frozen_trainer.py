"""A trainer that stops itself (SIGSTOP) at chosen moments of a push, as a machine that freezes would; a test continues it.

usage: frozen_trainer.py LOG POLICY ENGINE CHECKPOINT REPORT MOMENT…

LOG is Kafka's address, or `file:PATH` of claims that others make (`FileLog`). A moment is `idle`, or the route of an engine before
which it stops. For each it claims the policy, pushes, stops, and after its awakening pushes on; what came of that is a line of REPORT.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from bus import Bus, BusSettings, connect
from bus.memory import MemoryBus
from schemas.records import PolicyEvent, PolicyEventType
from trainer_sink.policies import PolicyWriter, SupersededError
from trainer_sink.policies.engine_control import EngineControl


class FileLog(MemoryBus):
    """A log that another process writes to as well: each line of a file is a claim, on the log before anybody is told of its end."""

    def __init__(self, path: Path, policy_id: str) -> None:
        super().__init__(partitions=1)
        self._path = path
        self._policy_id = policy_id
        self._taken = 0

    async def end_offsets(self, topic: str) -> dict[int, int]:
        """See `LogReader.end_offsets`."""
        for trainer in self._path.read_text().split()[self._taken :]:
            self._taken += 1
            claim = PolicyEvent(
                policy_id=self._policy_id, type=PolicyEventType.CLAIMED, trainer_id=trainer, reason=str(self._taken)
            )
            await self.publish(claim)
        return await super().end_offsets(topic)


class Freezer:
    """Stops this process once, right before a request to an engine."""

    def __init__(self) -> None:
        self.route = ""
        self._ask = EngineControl._ask  # the narrowest place: nothing but the client comes between it and the socket

    def install(self) -> None:
        """From now on requests pass by here."""
        freezer = self

        async def ask(control: EngineControl, method: str, route: str, *rest: Any) -> dict[str, Any]:
            if route == freezer.route:
                freezer.route = ""
                os.kill(os.getpid(), signal.SIGSTOP)
            return await freezer._ask(control, method, route, *rest)

        EngineControl._ask = ask  # type: ignore[method-assign,assignment]


def log_of(place: str, policy_id: str) -> AbstractAsyncContextManager[Bus]:
    """The log that this trainer reads."""
    if place.startswith("file:"):
        return FileLog(Path(place.removeprefix("file:")), policy_id)
    return connect(BusSettings(bootstrap=place))


async def main(arguments: list[str]) -> None:
    """One claim per moment, each when the file go-<number> beside the report says so."""
    place, policy_id, engine, checkpoint, told_to = arguments[:5]
    report = Path(told_to)
    freezer = Freezer()
    freezer.install()
    async with log_of(place, policy_id) as bus:
        for number, moment in enumerate(arguments[5:]):
            while not report.with_name(f"go-{number}").exists():
                await asyncio.sleep(0.02)
            told: dict[str, Any] = {"moment": moment}
            async with PolicyWriter(bus, policy_id, "frozen", engines=[engine]) as writer:
                told |= {"epoch": writer.epoch, "before": await writer.push(Path(checkpoint))}
                if moment == "idle":
                    os.kill(os.getpid(), signal.SIGSTOP)
                freezer.route = moment
                try:
                    told["pushed"] = await writer.push(Path(checkpoint))
                except SupersededError as error:
                    told |= {"by": error.by, "reached": list(error.reached), "version": error.version}
            with report.open("a", encoding="utf-8") as file:
                file.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
