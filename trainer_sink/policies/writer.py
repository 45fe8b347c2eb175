"""The one writer of a policy's weights: claims the policy, and pushes versions to its engines while nobody else has claimed it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog

from bus import Bus
from bus.errors import BusError
from schemas.records import PolicyEvent, PolicyEventType
from trainer_sink.policies.digest import digest_of
from trainer_sink.policies.errors import PolicyError, PushFailedError, SupersededError
from trainer_sink.policies.fence import Fence
from trainer_sink.policies.fleet import EngineFleet, engines_of
from trainer_sink.policies.modes import Deadlines, EngineReport, PauseMode
from trainer_sink.policies.reading import TimelineReader
from trainer_sink.policies.timeline import ANY_POLICY, FIRST_VERSION, Claim

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Push:
    """A version on its way, as long as not every engine has it."""

    version: str
    parent_version: str
    path: Path
    digest: str
    done: set[str] = field(default_factory=set)


class PolicyWriter:
    """Writes one policy's weights: `async with PolicyWriter(bus, "default", "my-trainer") as writer: await writer.push(path)`.

    Entering claims the policy, which ends every earlier writer of it. The engines are those that `policy.timeline` names for the
    policy, or `engines` (URLs); a checkpoint's path must mean the same directory on every engine's machine. `api_key` is the
    engines' admin key, where they have one. `pause_mode` and `deadlines`: see `trainer_sink.policies.modes`.
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
        api_key: str = "",
    ) -> None:
        if policy_id in ("", ANY_POLICY):
            raise ValueError(f"{policy_id!r} is no policy that can be trained: give the name of one")
        self.policy_id = policy_id
        self.trainer_id = trainer_id
        self.version = str(FIRST_VERSION)
        """The newest version published for the policy; "0" where none was."""
        self._bus = bus
        self._reader = TimelineReader(bus)
        self._urls = engines
        self._fleet = EngineFleet(deadlines=deadlines or Deadlines(), mode=pause_mode, api_key=api_key)
        self._claim: Claim | None = None
        self._fence: Fence | None = None
        self._pushing = asyncio.Lock()
        self._push: _Push | None = None

    @property
    def epoch(self) -> int:
        """The offset of this writer's claim; -1 before it is entered."""
        return -1 if self._claim is None else self._claim.epoch

    async def __aenter__(self) -> Self:
        if self._claim is not None:
            raise PolicyError("this writer is in use already, or was: make another one")
        self._fleet.open()
        try:
            await self._claim_policy()
        except BaseException:  # raised again: no connection is left behind
            await self._fleet.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._fleet.close()

    async def _claim_policy(self) -> None:
        nonce = uuid.uuid4().hex
        await self._bus.publish(self._event(PolicyEventType.CLAIMED, reason=nonce))
        timeline = (await self._reader.to_end()).of(self.policy_id)
        # By the log, not by the producer's answer: a claim that was sent twice counts where it stands first.
        self._claim = next(claim for claim in timeline.claims if claim.nonce == nonce)
        self._fence = Fence(self._reader, self.policy_id, self._claim)
        published = (await self._fence.check()).published
        _log.info("policy.claimed", policy_id=self.policy_id, trainer_id=self.trainer_id, epoch=self.epoch)
        if published is None:
            return
        self.version = published.version
        for one in await self._reports():
            if one.version != self.version:
                _log.warning("engine.out_of_step", policy_id=self.policy_id, published=self.version, found=one)

    async def push(self, path: Path, *, weights_digest: str = "") -> str:
        """Loads a checkpoint into every engine of the policy under the next version, publishes it, and returns it.

        `weights_digest` names the weights; without it the files are read for one. Raises SupersededError when another trainer has
        claimed the policy (its `reached` says whether an engine was changed), EnginesUnfitError, PolicyError without a checkpoint,
        PushFailedError when an engine didn't take it, and BusError; after those two push the same checkpoint again.
        """
        fence = self._entered()
        async with self._pushing:
            path = path.absolute()
            digest = weights_digest or await asyncio.to_thread(digest_of, path)
            timeline = await fence.check()
            push = self._push
            if push is None or (push.path, push.digest) != (path, digest):
                push = self._push = _Push(timeline.next_version, self.version, path, digest)
            await self._load(push, fence)
            await self._tell(PolicyEventType.PUBLISHED, push)
            self._push, self.version = None, push.version
            await self._tell_quietly(push, "")
            _log.info("policy.published", policy_id=self.policy_id, version=push.version, engines=sorted(push.done))
            return push.version

    async def sync(self) -> list[str]:
        """Loads the published version into the engines that report another one; their URLs.

        Engines that came later or restarted have other weights, and so do those that a superseded writer reached. Raises as `push`,
        and PolicyError where nothing was published.
        """
        fence = self._entered()
        async with self._pushing:
            timeline = await fence.check()
            last = timeline.published
            if last is None or not last.weights_path:
                raise PolicyError(
                    f"policy {self.policy_id} has no published checkpoint to bring engines up to: push one"
                )
            have = {one.url for one in await self._reports() if one.version == last.version}
            push = _Push(last.version, last.parent_version, Path(last.weights_path), last.weights_digest, set(have))
            if not have.issuperset(self._targets()):
                await self._load(push, fence)
                await self._tell_quietly(push, "brought up to the published version")
            return sorted(push.done - have)

    async def engines(self) -> list[EngineReport]:
        """What each engine of the policy says that it serves now."""
        self._entered()
        await self._reader.to_end()
        return await self._reports()

    async def _load(self, push: _Push, fence: Fence) -> None:
        """Brings every engine that lacks it to a version, or raises; only the pause is told."""
        self._targets()  # refused before anything is told or paused
        # On the log before the first engine has it: whoever claims the policy from now on counts on from this number.
        await self._tell(PolicyEventType.PAUSED, push)
        await fence.check()
        urls = self._targets()
        if push.done:  # of an earlier try; one that has restarted since has lost it
            push.done &= {one.url for one in await self._reports() if one.version == push.version}
        lacking = [url for url in urls if url not in push.done]
        outcome = await self._fleet.load(lacking, push.path, push.version, fence.fresh)
        superseded = outcome.superseded
        if superseded is None:
            push.done.update(outcome.done)
            try:
                await fence.check()  # did somebody take over while engines loaded?
            except SupersededError as error:
                superseded = error
        if superseded is not None:
            raise await self._confession(push, superseded) from superseded
        if outcome.failed:
            why = "; ".join(outcome.failed.values())
            await self._tell_quietly(push, f"the push failed: {why}")
            raise PushFailedError(
                f"version {push.version} of policy {self.policy_id} isn't on every engine: {why}. Push the same checkpoint "
                f"again; take out an engine that is gone for good: polynya engine remove URL --policy {self.policy_id}",
                version=push.version,
                failed=outcome.failed,
                done=tuple(sorted(push.done)),
            )

    async def _confession(self, push: _Push, error: SupersededError) -> SupersededError:
        """The error that says which engines have weights of a writer that no longer owns the policy; the timeline is told as well."""
        reached = tuple(one.url for one in await self._reports() if one.version == push.version)
        if not reached:
            return error
        _log.error("policy.superseded", policy_id=self.policy_id, version=push.version, by=error.by, reached=reached)
        await self._tell_quietly(push, f"superseded by {error.by} at epoch {error.epoch}, found too late: {reached}")
        return SupersededError(
            f"{error}. It was found out too late: version {push.version}, which stays unpublished, is on {', '.join(reached)} "
            f"until {error.by} pushes again or calls sync()",
            by=error.by,
            epoch=error.epoch,
            version=push.version,
            reached=reached,
        )

    def _entered(self) -> Fence:
        if self._fence is None or not self._fleet.is_open:
            raise PolicyError("use the writer as `async with PolicyWriter(…) as writer`")
        return self._fence

    def _targets(self) -> list[str]:
        return engines_of(self.policy_id, self._reader.timelines, self._urls)

    async def _reports(self) -> list[EngineReport]:
        urls = self._urls or list(self._reader.timelines.of(self.policy_id).engines)
        return await self._fleet.reports(url.rstrip("/") for url in urls)

    async def _tell(self, kind: PolicyEventType, push: _Push, reason: str = "") -> None:
        await self._bus.publish(
            self._event(
                kind,
                version=push.version,
                parent_version=push.parent_version,
                weights_digest=push.digest,
                weights_path=str(push.path),
                reason=reason,
            )
        )

    async def _tell_quietly(self, push: _Push, reason: str) -> None:
        """Says that generation goes on; what matters is known already, so an outage here is no reason to fail."""
        try:
            await self._tell(PolicyEventType.RESUMED, push, reason)
        except BusError as error:
            _log.warning("timeline.not_told", policy_id=self.policy_id, version=push.version, error=str(error))

    def _event(self, kind: PolicyEventType, **fields: Any) -> PolicyEvent:
        return PolicyEvent(
            policy_id=self.policy_id,
            type=kind,
            trainer_id=self.trainer_id,
            trainer_epoch=max(self.epoch, 0),
            at=time.time_ns() // 1_000_000,
            **fields,
        )
