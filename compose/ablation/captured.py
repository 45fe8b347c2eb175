"""One captured set of sessions, read once and built by both builders, so that every arm trains the very same calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

from bus.protocol import LogReader
from compose.ablation.arms import Builder
from schemas.records import ScoredTrajectory, Trajectory
from stream_processors.replay import Wanted, replay
from trainer_sink.groups import Group

SCORED: Final = "trajectory.scored"


@dataclass(frozen=True, slots=True)
class CapturedSet:
    """The groups of a log, by builder; `left_out` counts sessions that no arm trains, by reason."""

    groups: Mapping[Builder, tuple[Group, ...]]
    versions: tuple[str, ...]
    """The weight versions that sampled trained tokens: one, for a set that compares arms and nothing else."""
    left_out: Mapping[str, int] = field(default_factory=dict)

    @property
    def calls(self) -> dict[str, int]:
        """Trainable calls by session: traces under `per_request`."""
        return {
            one.session_id: len(one.trajectory.traces)
            for group in self.groups["per_request"]
            for one in group.scored
            if one.trajectory is not None
        }

    @property
    def rewards(self) -> list[float]:
        """Of all sessions."""
        return [one.reward for group in self.groups["per_request"] for one in group.scored if one.reward is not None]


class _Kept:
    """Where a replay puts its trajectories: here, by lease."""

    def __init__(self) -> None:
        self.by_lease: dict[str, Trajectory] = {}

    async def put(self, trajectory: Trajectory) -> None:
        self.by_lease[trajectory.lease_id] = trajectory

    async def save(self, checkpoint: Mapping[str, Any]) -> None:
        """Nothing is resumed."""


async def read_set(log: LogReader, *, task_ids: frozenset[str] | None = None) -> CapturedSet:
    """The set that stands on a log (a stack's, or an archive), or only some tasks of it.

    A session without a reward, and one whose calls a builder can't be given, is left out of all arms.
    """
    scored = await _scored(log, task_ids)
    built: dict[Builder, dict[str, Trajectory]] = {}
    for builder in get_args(Builder):
        kept = _Kept()
        # A builder's options are another builder's nonsense: each arm has its builder's defaults.
        await replay(log, Wanted(builder=builder, options={}), kept)
        built[builder] = kept.by_lease
    left_out: Counter[str] = Counter()
    whole: dict[str, ScoredTrajectory] = {}
    for session_id, one in scored.items():
        if one.reward is None or one.spec is None or one.trajectory is None:
            left_out["unrewarded"] += 1
        elif any(one.trajectory.lease_id not in by_lease for by_lease in built.values()):
            left_out["calls_missing"] += 1
        else:
            whole[session_id] = one
    groups = {builder: _groups(whole.values(), by_lease) for builder, by_lease in built.items()}
    return CapturedSet(groups, _versions(groups["per_request"]), dict(left_out))


async def _scored(log: LogReader, task_ids: frozenset[str] | None) -> dict[str, ScoredTrajectory]:
    """The newest revision of each session."""
    newest: dict[str, ScoredTrajectory] = {}
    async with aclosing(log.tail([SCORED], start="earliest", until_end=True)) as deliveries:
        async for delivery in deliveries:
            one = delivery.decode() if delivery.value else None
            if not isinstance(one, ScoredTrajectory) or (task_ids is not None and one.task_id not in task_ids):
                continue
            held = newest.get(one.session_id)
            if held is None or one.revision >= held.revision:
                newest[one.session_id] = one
    return newest


def _groups(scored: Any, by_lease: Mapping[str, Trajectory]) -> tuple[Group, ...]:
    """Groups in a fixed order, with each session's outcome on all of its traces, as the published comparison has it."""
    members: dict[str, list[ScoredTrajectory]] = {}
    for one in scored:
        trajectory = by_lease[one.trajectory.lease_id]
        plain = [replace(trace, reward=None) for trace in trajectory.traces]
        members.setdefault(one.group_id, []).append(replace(one, trajectory=replace(trajectory, traces=plain)))
    made = []
    for group_id in sorted(members):
        ordered = sorted(members[group_id], key=lambda s: (s.spec.index if s.spec else 0, s.session_id))
        spec = ordered[0].spec
        assert spec is not None
        made.append(Group(group_id, spec, len(ordered), tuple(ordered), ()))
    return tuple(made)


def _versions(groups: tuple[Group, ...]) -> tuple[str, ...]:
    spans = (
        span.version
        for group in groups
        for one in group.scored
        if one.trajectory is not None
        for trace in one.trajectory.traces
        for turn in trace.turns
        for span in turn.version_spans
    )
    return tuple(sorted(set(spans)))
