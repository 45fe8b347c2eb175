"""Which traces of a session become examples, and why the others don't. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from schemas import json_text
from schemas.arrays import ID_DTYPE
from schemas.records import ScoredTrajectory, Status, Trace
from schemas.wishes import GroupWish
from trainer_sink.export.shape import Conversation, Message, Shape, UnusableError, conversation

MAIN: Final = "main"
_ID_BYTES: Final = ID_DTYPE.itemsize


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """Which sessions are good enough: ended well, graded, and with at least this reward. None means any."""

    wish: GroupWish = field(default_factory=GroupWish)
    """Policy, tasks, harnesses, labels of the task's metadata."""
    statuses: frozenset[Status] = frozenset({Status.COMPLETED})
    min_reward: float | None = 1.0

    def refuses(self, scored: ScoredTrajectory) -> str:
        """The reason, or '' for a session that is accepted."""
        if reason := self.refuses_kind(scored):
            return reason
        if scored.status not in self.statuses:
            return f"status_{scored.status.value}"
        if self.min_reward is not None:
            if scored.reward is None:
                return "no_reward"
            if not scored.reward >= self.min_reward:  # NaN is no reward either
                return "reward"
        return "" if scored.trajectory is not None and scored.trajectory.traces else "no_traces"

    def refuses_kind(self, scored: ScoredTrajectory) -> str:
        """The reason for which a session isn't asked for, whatever became of it."""
        spec = scored.spec
        assert spec is not None, "the spool sets sessions without one aside"
        wanted = self.wish.refuses(
            policy_id=spec.policy_id, task_id=spec.task_id, harness=spec.harness, metadata=spec.metadata
        )
        return wanted or ""

    def to_json(self) -> dict[str, Any]:
        """As the manifest names it."""
        return {
            **self.wish.to_json(),
            "statuses": sorted(s.value for s in self.statuses),
            "min_reward": self.min_reward,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which traces of an accepted session; lengths in tokens as the engine counted them, prompt and answers together."""

    branches: frozenset[str] = frozenset({MAIN})
    min_tokens: int = 0
    max_tokens: int | None = None
    allow_cut: bool = False
    """Also conversations whose last reply was cut by its length."""

    def refuses(self, trace: Trace) -> str:
        """The reason, or ''."""
        if trace.branch not in self.branches:
            return f"branch_{trace.branch}"
        if trace.finish_reason == "length" and not self.allow_cut:
            return "cut"
        size = tokens_of(trace)
        if size < self.min_tokens:
            return "too_short"
        return "too_long" if self.max_tokens is not None and size > self.max_tokens else ""

    def to_json(self) -> dict[str, Any]:
        """As the manifest names it."""
        return {
            "branches": sorted(self.branches),
            "min_tokens": self.min_tokens,
            "max_tokens": self.max_tokens,
            "allow_cut": self.allow_cut,
        }


@dataclass(frozen=True, slots=True)
class Example:
    """One conversation of a session. `digest` is the same for the same messages and tools, whoever had them."""

    trace: Trace
    conversation: Conversation
    digest: str


@dataclass(slots=True)
class Examples:
    """A session's examples in the order of its traces, and its other traces by reason."""

    taken: list[Example] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


def tokens_of(trace: Trace) -> int:
    """Prompt and response together."""
    return (len(trace.prompt_ids) + len(trace.response_ids)) // _ID_BYTES


def examples_of(scored: ScoredTrajectory, choice: Choice, shape: Shape) -> Examples:
    """The examples of a session; a conversation that a longer one begins with is `contained` in it, and only the longer is taken."""
    found = Examples()
    candidates: list[tuple[Trace, Conversation, tuple[bytes, ...]]] = []
    for trace in scored.trajectory.traces if scored.trajectory else []:
        if reason := choice.refuses(trace):
            found.left_out[reason] += 1
            continue
        try:
            made = conversation(trace.messages, trace.tools, shape)
        except UnusableError as error:
            found.left_out[error.reason] += 1
            continue
        candidates.append((trace, made, _running(made)))
    # The longest first: what it begins with is in it. Reasoning that its history lost on the way is put back.
    longest = sorted(range(len(candidates)), key=lambda i: (-len(candidates[i][2]), i))
    kept: list[int] = []
    for i in longest:
        trace, made, path = candidates[i]
        whole = next((k for k in kept if candidates[k][2][: len(path)] == path), None)
        if whole is None:
            kept.append(i)
        else:
            found.left_out["contained"] += 1
            _restore_reasoning(candidates[whole][1].messages, made.messages)
    for i in sorted(kept):
        trace, made, _ = candidates[i]
        found.taken.append(Example(trace, made, digest_of(made)))
    return found


def digest_of(made: Conversation) -> str:
    """32 hex digits over messages and tools."""
    return hashlib.blake2b(json_text.dump([made.messages, made.tools]).encode(), digest_size=16).hexdigest()


def _running(made: Conversation) -> tuple[bytes, ...]:
    """Of the first 1, 2, … messages: what stands in them, less reasoning, which a harness may drop from its history."""
    state = hashlib.blake2b(json_text.dump(made.tools).encode(), digest_size=16)
    running = []
    for message in made.messages:
        plain = {k: v for k, v in message.items() if k != "reasoning_content"}
        state.update(json_text.dump(plain).encode() + b"\0")
        running.append(state.digest())
    return tuple(running)


def _restore_reasoning(longer: list[Message], shorter: list[Message]) -> None:
    for there, here in zip(longer, shorter, strict=False):
        if "reasoning_content" in here and "reasoning_content" not in there:
            there["reasoning_content"] = here["reasoning_content"]
