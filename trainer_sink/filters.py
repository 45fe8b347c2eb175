"""Which groups a trainer wants. Everything that it doesn't want is skipped under one named reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from schemas.records import ScoredTrajectory, SessionSpec


class SkipReason(StrEnum):
    """Why a group wasn't trained."""

    POLICY = "policy"
    """Sampled by another policy."""
    TASK = "task"
    """Its task isn't in the trainer's set."""
    HARNESS = "harness"
    """Ran in another harness."""
    FOR_OTHER_TRAINER = "for_other_trainer"
    """Re-run on behalf of another trainer."""
    TOKENIZER = "tokenizer"
    """Its ids belong to another tokenizer than the trainer's."""
    OFF_CONTEXT = "off_context"
    """Holds tokens that weren't sampled in the context that the trace shows."""
    UNREADABLE = "unreadable"
    """All sessions are in, but one or more could not be decoded (they are in the dead letters)."""
    STALE = "stale"
    """The trainer's own verdict: sampled too many versions ago."""
    SHORT = "short"
    """The trainer's own verdict: too few usable sessions."""


def _frozen(values: Iterable[str] | str | None) -> frozenset[str] | None:
    if values is None:
        return None
    return frozenset([values]) if isinstance(values, str) else frozenset(values)


@dataclass(frozen=True, slots=True)
class GroupFilter:
    """A trainer's wishes; None means any. `allow_off_context` takes traces whose context was spliced."""

    policy_id: str | None = None
    task_ids: frozenset[str] | None = None
    harnesses: frozenset[str] | None = None
    tokenizer_digest: str | None = None
    allow_off_context: bool = False

    @classmethod
    def of(
        cls,
        *,
        policy_id: str | None = None,
        task_ids: Iterable[str] | None = None,
        harness: Iterable[str] | str | None = None,
        tokenizer_digest: str | None = None,
        allow_off_context: bool = False,
    ) -> Self:
        """A filter from plain values; `harness` takes one name or several."""
        return cls(policy_id, _frozen(task_ids), _frozen(harness), tokenizer_digest, allow_off_context)

    def refuses_spec(self, spec: SessionSpec, trainer_id: str | None) -> SkipReason | None:
        """Why a session's whole group isn't wanted, known from any one of its sessions; None when it is.

        Without a trainer id (an export) groups that were re-run for some trainer are wanted like any other.
        """
        if self.policy_id is not None and spec.policy_id != self.policy_id:
            return SkipReason.POLICY
        if self.task_ids is not None and spec.task_id not in self.task_ids:
            return SkipReason.TASK
        if self.harnesses is not None and spec.harness not in self.harnesses:
            return SkipReason.HARNESS
        if trainer_id is not None and spec.for_trainer not in ("", trainer_id):
            return SkipReason.FOR_OTHER_TRAINER
        return None

    def refuses_content(self, scored: Iterable[ScoredTrajectory]) -> SkipReason | None:
        """Why a complete group isn't wanted, by what its sessions hold; None when it is."""
        for one in scored:
            digest = one.tokenizer_digest or (one.trajectory.tokenizer_digest if one.trajectory else "")
            if self.tokenizer_digest is not None and digest not in ("", self.tokenizer_digest):
                return SkipReason.TOKENIZER
            traces = one.trajectory.traces if one.trajectory else []
            if not self.allow_off_context and any(t.is_off_context for t in traces):
                return SkipReason.OFF_CONTEXT
        return None

    def to_json(self) -> dict[str, Any]:
        """As it is announced on trainer.consumed."""
        return {
            "policy_id": self.policy_id,
            "task_ids": None if self.task_ids is None else sorted(self.task_ids),
            "harnesses": None if self.harnesses is None else sorted(self.harnesses),
            "tokenizer_digest": self.tokenizer_digest,
            "allow_off_context": self.allow_off_context,
        }
