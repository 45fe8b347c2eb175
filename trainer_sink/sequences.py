"""From a group to what a trainer takes: one sequence for each trace with tokens to train, with its credit."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from schemas import arrays
from schemas.records import Boundary, ScoredTrajectory, SessionSpec, Status, Trace, VersionSpan
from trainer_sink.credit import CreditRule, assign
from trainer_sink.errors import SinkError
from trainer_sink.groups import Group
from trainer_sink.staleness import number_of

# Boundaries at which a failure is the policy's own doing; provider, sandbox and evaluator are ours or somebody else's.
POLICY_BOUNDARIES: Final = frozenset({Boundary.HARNESS, Boundary.NONE})


class TornTraceError(SinkError, ValueError):
    """A trace whose arrays don't belong together: nothing is padded or cut to make them fit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingSequence:
    """One trace with at least one trained token, and its credit.

    P prompt tokens, R response tokens. `logprobs` are the behaviour policy's natural logarithms, 0.0 where the mask is 0.
    `version_spans` cover sampled tokens of `response_ids`, [start, end), the version as the engine named it.
    """

    session_id: str
    group_id: str
    task_id: str
    policy_id: str = ""
    trajectory_id: str = ""
    index: int = 0
    """The session's place in its group."""
    group_size: int = 1
    trace_index: int = 0
    trace_count: int = 1
    """Sequences that the session gives to training (traces without a trained token aren't counted)."""
    branch: str = "main"
    parent_trace: int = -1
    prompt_ids: NDArray[np.int32]
    """Shape (P,)."""
    response_ids: NDArray[np.int32]
    """Shape (R,)."""
    loss_mask: NDArray[np.uint8]
    """Shape (R,): 1 on sampled tokens that are trained here."""
    logprobs: NDArray[np.float32]
    """Shape (R,)."""
    version_spans: tuple[VersionSpan, ...] = ()
    reward: float = 0.0
    """The trace's own, which is the session's unless the grader gave one per trace."""
    session_reward: float = 0.0
    weight: float = 1.0
    advantage: float = 0.0
    status: Status = Status.COMPLETED
    finish_reason: str = ""
    turns: int = 1
    """Calls that were sampled in this trace and are trained in it."""
    temperature: float | None = None
    """As the session's sampling asks for it; None when the harness chose."""
    is_off_context: bool = False
    logprobs_mode: str = ""
    tokenizer_digest: str = ""
    harness: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    source: Trace | None = field(default=None, repr=False)
    """The trace that it comes from."""

    @property
    def length(self) -> int:
        """P + R."""
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def trained_tokens(self) -> int:
        """How many tokens the loss sees."""
        return int(self.loss_mask.sum())

    @property
    def is_truncated(self) -> bool:
        """Cut by a limit: the last reply's length, or the session's time."""
        return self.finish_reason == "length" or self.status is Status.TIMEOUT

    @property
    def versions(self) -> tuple[str, ...]:
        """The weight versions that sampled it, each once, in the order of their first token."""
        return tuple(dict.fromkeys(span.version for span in self.version_spans))

    @property
    def messages(self) -> Any:
        """The conversation, as the proxy normalised it; parsed at the first look."""
        return self.source.messages if self.source is not None else []

    @property
    def tools(self) -> Any:
        """The tools that the harness declared; parsed at the first look."""
        return self.source.tools if self.source is not None else []

    @property
    def name(self) -> str:
        """For messages: session and trace."""
        return f"session {self.session_id} trace {self.trace_index}"

    def token_versions(self) -> NDArray[np.int64]:
        """Shape (R,): the version number of each sampled token, -1 where there is none or it isn't a number."""
        numbers = np.full(len(self.response_ids), -1, dtype=np.int64)
        for span in self.version_spans:
            if (number := number_of(span.version)) is not None:
                numbers[span.start : span.end] = number
        return numbers


def sequences_of(
    group: Group,
    credit: CreditRule | None = None,
    *,
    leave_out: Collection[str] = (),
    counts: Counter[str] | None = None,
) -> list[TrainingSequence]:
    """The group's sequences with their credit: in the order of sessions, then traces.

    `leave_out` names branches that aren't trained ("aux" for side calls, "sub-agent" …); their session's weight goes to its
    other traces. What yields no sequence is counted in `counts`: `unrewarded` and `invalid_reward` sessions, `no_traces`
    (it still counts in the baseline when it has a reward), `untrained_trace`, `branch.<name>`, `zero_variance`.
    Raises TornTraceError for a trace whose arrays differ in length, and what `credit.assign` raises.
    """
    rule = credit or CreditRule()
    tally: Counter[str] = Counter() if counts is None else counts
    kept: list[tuple[ScoredTrajectory, list[Trace], float]] = []
    rewards: list[list[float]] = []
    for scored in group.scored:
        reward = session_reward(scored, rule, tally)
        if reward is None:
            continue
        traces = _trained(scored, leave_out, tally)
        own = [reward if t.reward is None else t.reward for t in traces]
        if not all(math.isfinite(r) for r in own):
            tally["invalid_reward"] += 1
            continue
        kept.append((scored, traces, reward))
        rewards.append(own or [reward])
    if not kept:
        return []
    given = assign(rewards, rule, what=f"group {group.group_id}")
    tally.update(given.counts)
    if given.is_dropped:
        return []
    return [
        _sequence(scored, trace, len(traces), reward, (own, weight, advantage))
        for (scored, traces, reward), owns, weights, advantages in zip(
            kept, rewards, given.weights, given.advantages, strict=True
        )
        for trace, own, weight, advantage in zip(traces, owns, weights, advantages, strict=False)  # failed: none
    ]


def session_reward(scored: ScoredTrajectory, rule: CreditRule, tally: Counter[str]) -> float | None:
    """The reward that a session counts with; None when it doesn't count, under a reason in `tally`.

    A session that failed without a verdict has `rule.failed_reward` where the policy may be at fault (it ended at the
    harness, or ran out of time); one that the provider, the sandbox or the evaluator failed never counts.
    """
    if scored.reward is not None:
        if math.isfinite(scored.reward):
            return scored.reward
        tally["invalid_reward"] += 1
        return None
    failed = scored.status in (Status.FAILED, Status.TIMEOUT) and scored.boundary in POLICY_BOUNDARIES
    if rule.failed_reward is not None and failed:
        return rule.failed_reward
    tally["unrewarded"] += 1
    return None


def _trained(scored: ScoredTrajectory, leave_out: Collection[str], tally: Counter[str]) -> list[Trace]:
    traces = scored.trajectory.traces if scored.trajectory is not None else []
    if not traces:
        tally["no_traces"] += 1
    kept = []
    for trace in traces:
        if trace.branch in leave_out:
            tally[f"branch.{trace.branch}"] += 1
        elif b"\x01" not in trace.loss_mask:
            tally["untrained_trace"] += 1
        else:
            kept.append(trace)
    return kept


def _sequence(
    scored: ScoredTrajectory, trace: Trace, trace_count: int, session: float, credit: tuple[float, float, float]
) -> TrainingSequence:
    response = arrays.unpack_ids(trace.response_ids)
    mask = arrays.unpack_mask(trace.loss_mask)
    logprobs = arrays.unpack_logprobs(trace.logprobs)
    if not len(response) == len(mask) == len(logprobs):
        raise TornTraceError(
            f"session {scored.session_id} trace {trace.index} has {len(response)} response ids, {len(mask)} mask values "
            f"and {len(logprobs)} logprobs: skip its group, and look for its builder {scored.trajectory_id}"
        )
    spec = scored.spec or SessionSpec()
    temperature = (spec.sampling or {}).get("temperature")
    return TrainingSequence(
        session_id=scored.session_id,
        group_id=scored.group_id,
        task_id=scored.task_id,
        policy_id=scored.policy_id,
        trajectory_id=scored.trajectory_id,
        index=spec.index,
        group_size=spec.group_size,
        trace_index=trace.index,
        trace_count=trace_count,
        branch=trace.branch,
        parent_trace=trace.parent_trace,
        prompt_ids=arrays.unpack_ids(trace.prompt_ids),
        response_ids=response,
        loss_mask=mask,
        logprobs=logprobs,
        version_spans=tuple(
            VersionSpan(version=s.version, start=turn.start + s.start, end=turn.start + s.end)
            for turn in trace.turns
            for s in turn.version_spans
            if turn.is_trained
        ),
        reward=credit[0],
        session_reward=session,
        weight=credit[1],
        advantage=credit[2],
        status=scored.status,
        finish_reason=trace.finish_reason,
        turns=sum(turn.is_trained for turn in trace.turns),
        temperature=None if temperature is None else float(temperature),
        is_off_context=trace.is_off_context,
        logprobs_mode=scored.logprobs_mode,
        tokenizer_digest=scored.tokenizer_digest,
        harness=spec.harness,
        metadata=spec.metadata or {},
        source=trace,
    )


def without_sequences(group: Group, sequences: Sequence[TrainingSequence]) -> list[ScoredTrajectory]:
    """The group's sessions that none of `sequences` comes from: failed, ungraded, or without a trained token.

    For trainers that want one entry for each session whatever became of it.
    """
    given = {s.session_id for s in sequences}
    return [one for one in group.scored if one.session_id not in given]


def mean_reward(sequences: Sequence[TrainingSequence]) -> float:
    """The mean of the outcomes of the sessions that these come from; 0 for none.

    A session without a verdict that has to have a reward (because its trainer wants one for each) leaves a group's mean where it
    is when it gets this one.
    """
    outcomes = {s.session_id: s.session_reward for s in sequences}
    return sum(outcomes.values()) / len(outcomes) if outcomes else 0.0
