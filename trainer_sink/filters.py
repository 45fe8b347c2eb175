"""Which groups a trainer wants. Everything that it doesn't want is skipped under one named reason."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Literal, Self, TypedDict

from schemas.records import ScoredTrajectory, SessionSpec, Trace
from schemas.wishes import GroupWish, Patterns, is_for
from trainer_sink.staleness import Staleness

SIDE_CALL: Final = "aux"
"""The branch of a harness' calls beside its work: titles, summaries, quota checks."""

EQUAL_REWARDS: Final = 1e-9
"""Rewards that differ by less are the same: their group has nothing to compare."""

SideCalls = Literal["keep", "drop"]


class SkipReason(StrEnum):
    """Why a group wasn't trained."""

    POLICY = "policy"
    """Sampled by another policy."""
    TASK = "task"
    """Its task isn't in the trainer's set."""
    HARNESS = "harness"
    """Ran in another harness."""
    METADATA = "metadata"
    """Its task's labels (data set, split, repo …) aren't those that the trainer named."""
    FOR_OTHER_TRAINER = "for_other_trainer"
    """Re-run on behalf of another trainer."""
    TOKENIZER = "tokenizer"
    """Its ids belong to another tokenizer than the trainer's."""
    OFF_CONTEXT = "off_context"
    """Holds tokens that weren't sampled in the context that the trace shows."""
    UNREADABLE = "unreadable"
    """All sessions are in, but one or more could not be decoded (they are in the dead letters)."""
    SHORT = "short"
    """Fewer usable sessions than `min_usable`. The orchestrator runs it again for this trainer."""
    UNREWARDED = "unrewarded"
    """Fewer sessions with a reward than `min_rewarded`."""
    MEAN_REWARD = "mean_reward"
    """Its mean reward lies outside of the trainer's bounds: too hard or too easy."""
    NO_VARIANCE = "no_variance"
    """All sessions have the same reward: there is nothing to compare."""
    STALE = "stale"
    """Holds trained tokens of weights more than `max_policy_lag` versions ago. The orchestrator runs it again for this trainer."""
    UNVERSIONED = "unversioned"
    """There is a bound on its age, but an engine didn't say which weights it used."""
    INCOMPLETE = "incomplete"
    """It will never be whole here: it began before this sink's start, or retention took a part of it."""


class Wishes(TypedDict, total=False):
    """What a trainer may wish for, by name; what isn't named is any."""

    policy_id: str | None
    """The one policy."""
    task_ids: Iterable[str] | None
    """Tasks, by id or glob: `["gsm8k/*"]`."""
    harness: Iterable[str] | str | None
    """Harnesses, by name or glob."""
    metadata: Mapping[str, Any] | None
    """Labels of the task, each with a text, a glob or several: `{"data_set": "gsm8k", "split": ["train", "dev"]}`."""
    tokenizer_digest: str | None
    """The trainer's own tokenizer."""
    allow_off_context: bool
    """Take traces whose context was spliced."""
    side_calls: SideCalls
    """"drop" leaves the traces of side calls out of the groups; they are counted either way."""
    min_usable: int
    """So many sessions must be usable: completed, with a finite reward and a token to train (default 0)."""
    min_rewarded: int
    """So many sessions must have a finite reward (default 0)."""
    min_mean_reward: float | None
    """The mean over sessions with a reward must be at least this."""
    max_mean_reward: float | None
    """… and at most this."""
    require_variance: bool
    """Skip groups whose rewards are all the same."""
    max_policy_lag: int | None
    """The oldest trained token of a group may be so many versions behind when the group is handed out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFilter:
    """A trainer's wishes, checked in three steps: by any one session, by the complete group, by its age when it is handed out."""

    wish: GroupWish = field(default_factory=GroupWish)
    tokenizer_digest: str | None = None
    allow_off_context: bool = False
    side_calls: SideCalls = "keep"
    min_usable: int = 0
    min_rewarded: int = 0
    min_mean_reward: float | None = None
    max_mean_reward: float | None = None
    require_variance: bool = False
    max_policy_lag: int | None = None

    def __post_init__(self) -> None:
        """Refuse wishes that nothing could fulfil."""
        if self.side_calls not in ("keep", "drop"):
            raise ValueError(f"side_calls must be 'keep' or 'drop', not {self.side_calls!r}")
        for name in ("min_usable", "min_rewarded", "max_policy_lag"):
            if (getattr(self, name) or 0) < 0:
                raise ValueError(f"{name} must be 0 or more, not {getattr(self, name)}")
        if "" in (self.policy_id, self.tokenizer_digest):
            raise ValueError("policy_id or tokenizer_digest is an empty text, which nothing has: leave it out for any")
        low, high = self.min_mean_reward, self.max_mean_reward
        if any(bound is not None and math.isnan(bound) for bound in (low, high)):
            raise ValueError("min_mean_reward or max_mean_reward is NaN, which no mean can be compared with")
        if low is not None and high is not None and low > high:
            raise ValueError(f"min_mean_reward {low} is above max_mean_reward {high}: no group could fit")

    @classmethod
    def of(
        cls,
        *,
        policy_id: str | None = None,
        task_ids: Iterable[str] | None = None,
        harness: Iterable[str] | str | None = None,
        metadata: Mapping[str, Any] | None = None,
        **content: Any,
    ) -> Self:
        """A filter from `Wishes`."""
        named = {name: Patterns.of(texts) for name, texts in (metadata or {}).items()}
        wish = GroupWish(
            policy_id,
            Patterns.of(task_ids),
            Patterns.of(harness),
            {name: texts for name, texts in named.items() if texts is not None},
        )
        return cls(wish=wish, **content)

    @property
    def policy_id(self) -> str | None:
        """The one policy that is wanted."""
        return self.wish.policy_id

    def refuses_spec(self, spec: SessionSpec, trainer_id: str | None) -> SkipReason | None:
        """Why a session's whole group isn't wanted, known from any one of its sessions; None when it is.

        Without a trainer id (an export) groups that were re-run for some trainer are wanted like any other.
        """
        reason = self.wish.refuses(
            policy_id=spec.policy_id, task_id=spec.task_id, harness=spec.harness, metadata=spec.metadata
        )
        if reason is not None:
            return SkipReason(reason)
        if trainer_id is not None and not is_for(spec.for_trainer, trainer_id):
            return SkipReason.FOR_OTHER_TRAINER
        return None

    def refuses_content(self, scored: Iterable[ScoredTrajectory]) -> SkipReason | None:
        """Why these sessions aren't wanted, each for what it holds; None when they are."""
        for one in scored:
            digest = one.tokenizer_digest or (one.trajectory.tokenizer_digest if one.trajectory else "")
            if self.tokenizer_digest is not None and digest not in ("", self.tokenizer_digest):
                return SkipReason.TOKENIZER
            traces = one.trajectory.traces if one.trajectory else []
            if not self.allow_off_context and any(t.is_off_context and self._takes(t.branch) for t in traces):
                return SkipReason.OFF_CONTEXT
        return None

    def refuses_group(self, scored: Sequence[ScoredTrajectory]) -> SkipReason | None:
        """Why a complete group isn't wanted as a whole, by pure counts; None when it is."""
        if sum(one.is_usable for one in scored) < self.min_usable:
            return SkipReason.SHORT
        rewards = [one.verdict for one in scored if one.verdict is not None]
        if len(rewards) < self.min_rewarded:
            return SkipReason.UNREWARDED
        if self.min_mean_reward is not None or self.max_mean_reward is not None:
            mean = sum(rewards) / len(rewards) if rewards else None
            if (
                mean is None
                or (self.min_mean_reward is not None and mean < self.min_mean_reward)
                or (self.max_mean_reward is not None and mean > self.max_mean_reward)
            ):
                return SkipReason.MEAN_REWARD
        if self.require_variance and max(rewards, default=0.0) - min(rewards, default=0.0) < EQUAL_REWARDS:
            return SkipReason.NO_VARIANCE
        return None

    def refuses_age(self, staleness: Staleness) -> SkipReason | None:
        """Why a group isn't wanted any more; None when it is."""
        if self.max_policy_lag is None:
            return None
        if staleness.max > self.max_policy_lag:
            return SkipReason.STALE
        return SkipReason.UNVERSIONED if staleness.unversioned else None

    def without_side_calls(self, scored: ScoredTrajectory) -> tuple[ScoredTrajectory, int]:
        """A session as the trainer gets it, and how many traces of side calls it had. `Trace.index` keeps its numbers."""
        trajectory = scored.trajectory
        if trajectory is None or not (found := sum(t.branch == SIDE_CALL for t in trajectory.traces)):
            return scored, 0
        if self.side_calls == "keep":
            return scored, found
        kept = [t for t in trajectory.traces if t.branch != SIDE_CALL]
        # The session counts as much as before.
        share = len(trajectory.traces) / max(1, len(kept))
        kept = [_weighing(t, t.weight * share) for t in kept]
        return dataclasses.replace(scored, trajectory=dataclasses.replace(trajectory, traces=kept)), found

    def _takes(self, branch: str) -> bool:
        return self.side_calls == "keep" or branch != SIDE_CALL

    def to_json(self) -> dict[str, Any]:
        """As it is announced on trainer.consumed. The orchestrator goes by what `GroupWish` reads of it; the rest is for people."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "wish"}
        return {**self.wish.to_json(), **fields}


def _weighing(trace: Trace, weight: float) -> Trace:
    """The same trace with another weight. `replace` would look at every field, and so parse a conversation that may not be needed."""
    other = copy.copy(trace)
    object.__setattr__(other, "weight", weight)  # frozen, and nobody else has seen it yet
    return other
