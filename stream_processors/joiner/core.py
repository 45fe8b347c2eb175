"""The joiner's pure core: when a session's result is complete, and what it is.

A result is emitted once the terminal fact and all that it expects are in; whatever changes it afterwards (another
verdict) is the next revision, and what doesn't change it is nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import orjson

from schemas import ids
from schemas.records import (
    Record,
    Reward,
    RewardValue,
    ScoredTrajectory,
    SessionEvent,
    SessionEventType,
    SessionSpec,
    Trajectory,
)
from stream_processors.joiner.row import End, KeptTrajectory, SessionRow, StoredReward


def apply(row: SessionRow, fact: Record, offset: int) -> SessionRow:
    """The row after one fact that stands at `offset` of its partition; the same fact again changes nothing."""
    if isinstance(fact, SessionEvent):
        if fact.spec is not None and row.spec is None:
            row = replace(row, spec=fact.spec)
        if fact.type is SessionEventType.ENDED and row.end is None:
            row = replace(row, end=End.of(fact))
    elif isinstance(fact, Trajectory):
        # The first content of a revision stays: the assembler never publishes another one under the same number.
        kept = row.trajectories.get(fact.lease_id, ())
        if all(fact.revision != k.revision for k in kept):
            new = KeptTrajectory(fact.content_digest, offset, fact.revision)
            ordered = tuple(sorted((*kept, new), key=lambda k: k.revision))
            row = replace(row, trajectories={**row.trajectories, fact.lease_id: ordered})
    elif isinstance(fact, Reward):
        stored = StoredReward.of(fact)
        if all(r.event_id != stored.event_id for r in row.rewards):
            row = replace(row, rewards=(*row.rewards, stored))
    return row


def current_rewards(row: SessionRow) -> list[RewardValue]:
    """The rewards of the winning lease, the latest verdict per name, in the order in which the names appeared."""
    if row.end is None:
        return []
    latest: dict[str, RewardValue] = {}
    for stored in row.rewards:
        if stored.lease_id == row.end.winning_lease:
            latest[stored.value.name] = stored.value
    return list(latest.values())


def is_complete(row: SessionRow) -> bool:
    """Whether the terminal fact is in, and all that it expects."""
    end = row.end
    if end is None:
        return False
    if end.expects_trajectory and end.winning_lease not in row.trajectories:
        return False
    names = {r.name for r in current_rewards(row)}
    return not end.expects_reward or (set(end.rewards) <= names if end.rewards else bool(names))


def content_of(row: SessionRow) -> str:
    """The digest of what a scored trajectory of this row says: the trajectory's content, its rewards and its end."""
    assert row.end is not None
    rewards = [[r.name, repr(r.value), _spell(r.trace_rewards), *_source(r)] for r in current_rewards(row)]
    kept = row.trajectories.get(row.end.winning_lease)
    trajectory = kept[-1].digest if kept and row.end.expects_trajectory else ""
    return ids.digest(orjson.dumps([trajectory, rewards, row.end.status, row.end.boundary]))


def _spell(values: list[float] | None) -> list[str] | None:
    return None if values is None else [repr(v) for v in values]


def _source(reward: RewardValue) -> tuple[str, str, str]:
    return reward.grader, reward.grader_version, reward.provenance


REVISIONS_PER_TRAJECTORY: Final = 1000
"""Numbers that a trajectory's revision has for verdicts: two topics have no order between them, so each pair has its own number."""


def revisions(row: SessionRow) -> list[SessionRow]:
    """What a complete row has to say beyond what was emitted: per new revision the row as it stood then.

    Revision 1 is the row with the first verdicts that satisfy the end, each further verdict is one more; each further revision
    of the trajectory is another thousand. They are counted along the log, where a session's verdicts have one order, and none is
    left out: so a restart that reads the topics in another order gives the same contents the same numbers, and nobody ever
    meets a session first in a later revision. What changes nothing has a number and no emission.
    """
    assert row.end is not None
    lease = row.end.winning_lease
    verdicts = [r for r in row.rewards if r.lease_id == lease]
    by_verdict = [replace(row, rewards=tuple(verdicts[:n])) for n in range(len(verdicts) + 1)]
    told: list[SessionRow] = []
    emitted = row.emitted
    for number, kept in enumerate(row.trajectories.get(lease) or (None,)):
        one = {} if kept is None else {lease: (kept,)}
        views = (replace(view, trajectories={**row.trajectories, **one}) for view in by_verdict)
        for revision, view in enumerate(filter(is_complete, views), 1 + number * REVISIONS_PER_TRAJECTORY):
            if revision <= row.revision or content_of(view) == emitted:
                continue
            emitted = content_of(view)
            told.append(replace(view, revision=revision, emitted=emitted))
    return told


def score(row: SessionRow, session_id: str, trajectory: Trajectory | None, scored_at: int) -> ScoredTrajectory:
    """One revision, from the row as `revisions` gave it; `trajectory` is the winning lease's, None when none is expected.

    Weights: one over the session's traces, so that a fragmented session counts no more than a whole one. A trace's
    reward is its own where the grader gave one per trace, else the outcome.
    """
    end = row.end
    assert end is not None
    spec = row.spec or SessionSpec()
    rewards = current_rewards(row)
    main = _main_reward(end, rewards)
    error = end.error
    if trajectory is not None:
        trajectory, complaint = _credit(trajectory, main)
        error = "; ".join(part for part in (error, complaint) if part)
    options = orjson.dumps(spec.builder_options, option=orjson.OPT_SORT_KEYS).decode()
    return ScoredTrajectory(
        session_id=session_id,
        group_id=spec.group_id,
        task_id=spec.task_id,
        policy_id=spec.policy_id,
        trajectory_id=ids.trajectory_id(session_id, end.winning_lease, spec.builder, options),
        lease_id=end.winning_lease,
        attempt=end.attempt,
        revision=row.revision,
        content_digest=row.emitted,
        status=end.status,
        boundary=end.boundary,
        error=error,
        reward=None if main is None else main.value,
        rewards=rewards,
        trajectory=trajectory,
        spec=row.spec,
        tokenizer_digest=trajectory.tokenizer_digest if trajectory else "",
        logprobs_mode=trajectory.logprobs_mode if trajectory else "",
        ended_at=end.at,
        scored_at=scored_at,
    )


def headers_of(scored: ScoredTrajectory) -> list[tuple[str, bytes]]:
    """What a reader that counts results needs to know without reading them: the session's place in its group, its end, its use."""
    fields = {
        "index": scored.spec.index if scored.spec is not None else 0,
        "status": scored.status,
        "is_usable": int(scored.is_usable),
        "revision": scored.revision,
    }
    return [(name, str(value).encode()) for name, value in fields.items()]


def _main_reward(end: End, rewards: list[RewardValue]) -> RewardValue | None:
    """The outcome reward: the first that the end names, else the one called `reward`, else the first that came."""
    by_name = {r.name: r for r in rewards}
    wanted = [*end.rewards, "reward"]
    return next((by_name[name] for name in wanted if name in by_name), rewards[0] if rewards else None)


def _credit(trajectory: Trajectory, reward: RewardValue | None) -> tuple[Trajectory, str]:
    traces = trajectory.traces
    given = reward.trace_rewards if reward is not None else None
    complaint = ""
    if given is not None and len(given) != len(traces):
        complaint = f"trace_rewards has {len(given)} values for {len(traces)} traces: the outcome reward is used"
        given = None
    outcome = None if reward is None or math.isnan(reward.value) else reward.value
    values = given if given is not None else [outcome] * len(traces)
    weight = 1.0 / len(traces) if traces else 1.0
    credited = [replace(t, weight=weight, reward=value) for t, value in zip(traces, values, strict=True)]
    return replace(trajectory, traces=credited), complaint
