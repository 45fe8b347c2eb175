"""The engines of one policy: which they are, and one version pushed to all of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bus.errors import BusError
from trainer_sink.policies.errors import EnginesUnfitError, PolicyError, SupersededError
from trainer_sink.policies.modes import Deadlines, EngineReport, PauseMode
from trainer_sink.policies.reading import Timelines
from trainer_sink.policies.timeline import PolicyTimeline

if TYPE_CHECKING:
    import httpx

    from trainer_sink.policies.engine_control import EngineControl

LOADABLE: Final = ("sglang", "cpu")
"""Kinds of engines whose protocol has an update from disk."""


def engines_of(policy_id: str, timelines: Timelines, urls: Sequence[str] | None = None) -> list[str]:
    """The URLs to push a policy's weights to: `urls`, or those that the timeline names. Raises EnginesUnfitError."""
    own = timelines.of(policy_id).engines
    wanted = list(own) if urls is None else list(dict.fromkeys(url.rstrip("/") for url in urls))
    if not wanted:
        raise EnginesUnfitError(f"no engine serves policy {policy_id}: polynya engine add URL --policy {policy_id}")
    for url in wanted:
        if url in own and own[url].kind not in LOADABLE:
            raise EnginesUnfitError(
                f"the engine {url} of policy {policy_id} is of kind {own[url].kind}, which can't load weights from a disk "
                f"({', '.join(LOADABLE)} can): restart it with the new weights, or serve the policy with SGLang"
            )
    if shared := [e for e in timelines.engines() if e.url in wanted and e.policy_id != policy_id]:
        raise EnginesUnfitError(
            f"the engine {shared[0].url} serves policy {shared[0].policy_id}, too: new weights of {policy_id} would change "
            f"what that policy samples. Give each its own engine: polynya engine remove {shared[0].url} --policy …"
        )
    return wanted


async def ask_engines(timeline: PolicyTimeline, *, deadlines: Deadlines | None = None) -> list[EngineReport]:
    """What a policy's engines say that they serve, those of a kind that can say it. Changes nothing; PolicyError without httpx."""
    fleet = EngineFleet(deadlines=deadlines or Deadlines(), mode="retract", api_key="")
    fleet.open()
    try:
        return await fleet.reports(engine.url for engine in timeline.engines.values() if engine.kind in LOADABLE)
    finally:
        await fleet.close()


@dataclass(slots=True)
class Outcome:
    """What became of a push: the engines that took it, why others didn't, and whether another writer was found to own the policy."""

    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    superseded: SupersededError | None = None


class EngineFleet:
    """The control clients of a writer; `open` and `close` bracket its use."""

    def __init__(self, *, deadlines: Deadlines, mode: PauseMode, api_key: str) -> None:
        self._deadlines = deadlines
        self._mode: PauseMode = mode
        self._api_key = api_key
        self._client: httpx.AsyncClient | None = None
        self._controls: dict[str, EngineControl] = {}

    @property
    def is_open(self) -> bool:
        """Whether engines can be reached."""
        return self._client is not None

    def open(self) -> None:
        """Makes the HTTP client; PolicyError without the extra."""
        try:
            import httpx
        except ModuleNotFoundError as missing:
            raise PolicyError("pushing weights needs httpx: pip install 'polynya[trainer]'") from missing
        # Engines are named by the timeline: a proxy of the environment has no part in it.
        self._client = httpx.AsyncClient(trust_env=False)

    async def close(self) -> None:
        """Lets every engine go on that is still being told to, and disconnects."""
        unfinished = [task for control in self._controls.values() for task in control.unfinished]
        await asyncio.gather(*unfinished, return_exceptions=True)
        self._controls.clear()
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def load(
        self, urls: Iterable[str], path: Path, version: str, guard: Callable[[], Awaitable[None]]
    ) -> Outcome:
        """Loads a version into these engines at once; waits for all of them, whatever one of them does."""
        from trainer_sink.policies.engine_control import EngineControlError

        controls = [self._control(url) for url in urls]
        results = await asyncio.gather(*(c.load(path, version, guard) for c in controls), return_exceptions=True)
        outcome = Outcome()
        for control, result in zip(controls, results, strict=True):
            match result:
                case None:
                    outcome.done.append(control.url)
                case SupersededError():
                    outcome.superseded = result
                case EngineControlError():
                    outcome.failed[control.url] = str(result)
                case BusError():
                    outcome.failed[control.url] = f"{control.url} wasn't touched: the timeline can't be read ({result})"
                case _:
                    raise result
        return outcome

    async def reports(self, urls: Iterable[str]) -> list[EngineReport]:
        """What these engines say that they serve."""
        return list(await asyncio.gather(*(self._report(url) for url in urls)))

    async def _report(self, url: str) -> EngineReport:
        from trainer_sink.policies.engine_control import EngineControlError

        try:
            loaded = await self._control(url).loaded()
        except EngineControlError as error:
            return EngineReport(url, problem=str(error))
        return EngineReport(url, loaded.version, loaded.model_path)

    def _control(self, url: str) -> EngineControl:
        from trainer_sink.policies.engine_control import EngineControl

        if self._client is None:
            raise PolicyError("use the writer as `async with PolicyWriter(…) as writer`")
        if url not in self._controls:
            self._controls[url] = EngineControl(
                self._client, url, deadlines=self._deadlines, mode=self._mode, api_key=self._api_key
            )
        return self._controls[url]
