"""The one writer of a policy's weights: claims the policy, and pushes versions to its engines as long as nobody else has claimed it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from bus import Bus
from schemas.records import PolicyEvent, PolicyEventType
from trainer_sink.policies.errors import NoEnginesError, PolicyError, PushFailedError, SupersededError
from trainer_sink.policies.reading import TimelineReader
from trainer_sink.policies.timeline import FIRST_VERSION, PolicyTimeline

if TYPE_CHECKING:
    import httpx

    from trainer_sink.policies.engine_control import Deadlines, PauseMode


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class PolicyWriter:
    """Writes one policy's weights: `async with PolicyWriter(bus, "default", "my-trainer") as writer: await writer.push(path)`.

    Entering claims the policy; the claim's offset is `epoch`. The engines are those that `policy.timeline` names for the policy,
    or `engines` (URLs). A checkpoint's path must mean the same directory on every engine's machine.
    """

    def __init__(
        self,
        bus: Bus,
        policy_id: str,
        trainer_id: str,
        *,
        engines: Sequence[str] | None = None,
        pause_mode: PauseMode = "retract",
        deadlines: Deadlines | None = None,
    ) -> None:
        self.policy_id = policy_id
        self.trainer_id = trainer_id
        self.epoch = -1
        """The offset of this writer's claim; -1 before it is entered."""
        self.version = str(FIRST_VERSION)
        """The newest version published for the policy; "0" where none was."""
        self._bus = bus
        self._reader = TimelineReader(bus, policy_id)
        self._engines = None if engines is None else [url.rstrip("/") for url in engines]
        self._mode: PauseMode = pause_mode
        self._deadlines = deadlines
        self._client: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        try:
            import httpx
        except ModuleNotFoundError as missing:
            raise PolicyError("pushing weights needs httpx: pip install 'polynya[trainer]'") from missing
        claim = self._event(PolicyEventType.CLAIMED)
        await self._bus.publish(claim)
        timeline = await self._reader.to_end()
        mine = [c for c in timeline.claims if (c.trainer_id, c.at) == (self.trainer_id, claim.at)]
        self.epoch = mine[-1].epoch
        self._check(timeline)
        self._take(timeline)
        self._client = httpx.AsyncClient(trust_env=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def push(self, path: Path, *, weights_digest: str = "") -> str:
        """Loads a checkpoint into every engine of the policy under the next version, publishes it, and returns it.

        Raises SupersededError when another trainer has claimed the policy since, NoEnginesError, or PushFailedError when an engine
        didn't take it (push the same checkpoint again).
        """
        timeline = await self._reader.to_end()
        self._check(timeline)
        version = timeline.next_version
        urls = self._urls(timeline)
        named = {"version": version, "parent_version": self.version, "weights_digest": weights_digest}
        await self._bus.publish(self._event(PolicyEventType.PAUSED, **named))
        self._check(await self._reader.to_end())
        failed = await self._load(urls, path, version)
        superseded = self._superseded(await self._reader.to_end(), reached=tuple(u for u in urls if u not in failed))
        if superseded is not None or failed:
            await self._bus.publish(self._event(PolicyEventType.RESUMED, **named, reason="the push failed"))
            if superseded is not None:
                raise superseded
            raise PushFailedError(
                f"version {version} of policy {self.policy_id} isn't on every engine: {'; '.join(failed.values())}",
                version=version,
                failed=failed,
                done=tuple(u for u in urls if u not in failed),
            )
        await self._bus.publish(self._event(PolicyEventType.PUBLISHED, **named))
        await self._bus.publish(self._event(PolicyEventType.RESUMED, **named))
        self._take(await self._reader.to_end())
        return version

    async def _load(self, urls: Sequence[str], path: Path, version: str) -> dict[str, str]:
        """Pushes to all engines at once; what went wrong, by URL."""
        from trainer_sink.policies.engine_control import Deadlines, EngineControl, EngineControlError

        if self._client is None:
            raise PolicyError("use the writer as `async with PolicyWriter(…) as writer`")
        controls = [
            EngineControl(self._client, url, deadlines=self._deadlines or Deadlines(), mode=self._mode) for url in urls
        ]
        results = await asyncio.gather(*(c.load(path.absolute(), version) for c in controls), return_exceptions=True)
        failed = {}
        for control, result in zip(controls, results, strict=True):
            if isinstance(result, EngineControlError):
                failed[control.url] = str(result)
            elif isinstance(result, BaseException):
                raise result
        return failed

    def _urls(self, timeline: PolicyTimeline) -> list[str]:
        urls = list(timeline.engines) if self._engines is None else self._engines
        if not urls:
            raise NoEnginesError(
                f"no engine serves policy {self.policy_id}: polynya engine add URL --policy {self.policy_id}"
            )
        return urls

    def _check(self, timeline: PolicyTimeline) -> None:
        superseded = self._superseded(timeline)
        if superseded is not None:
            raise superseded

    def _superseded(self, timeline: PolicyTimeline, reached: tuple[str, ...] = ()) -> SupersededError | None:
        owner = timeline.owner
        if owner is None or owner.epoch == self.epoch:
            return None
        return SupersededError(
            f"trainer {self.trainer_id} (epoch {self.epoch}) may no longer push policy {self.policy_id}: trainer "
            f"{owner.trainer_id} claimed it at epoch {owner.epoch}. Stop this trainer, or start it anew to claim the policy again",
            by=owner.trainer_id,
            epoch=owner.epoch,
            reached=reached,
        )

    def _take(self, timeline: PolicyTimeline) -> None:
        if timeline.published is not None:
            self.version = timeline.published.version

    def _event(
        self,
        kind: PolicyEventType,
        *,
        version: str = "",
        parent_version: str = "",
        weights_digest: str = "",
        reason: str = "",
    ) -> PolicyEvent:
        return PolicyEvent(
            policy_id=self.policy_id,
            type=kind,
            version=version,
            parent_version=parent_version,
            weights_digest=weights_digest,
            trainer_id=self.trainer_id,
            trainer_epoch=max(self.epoch, 0),
            reason=reason,
            at=_now_ms(),
        )
