"""One group: while it fills, and when it is whole. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from bus.errors import PoisonError
from schemas.records import ScoredTrajectory, SessionSpec
from trainer_sink.staleness import Staleness


@dataclass(frozen=True, slots=True, order=True)
class Source:
    """Where a record of trajectory.scored stands."""

    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Group:
    """A complete group: one scored trajectory per session, in index order, and where each stands."""

    group_id: str
    spec: SessionSpec
    size: int
    scored: tuple[ScoredTrajectory, ...]
    sources: tuple[Source, ...]
    staleness: Staleness = field(default_factory=Staleness, compare=False)
    """How old its trained tokens were when it was handed out."""


@dataclass(slots=True)
class OpenGroup:
    """A group that isn't finished: filling, complete, or yielded and not yet committed."""

    group_id: str
    first: Source
    last: Source
    size: int = 0
    """How many sessions make it whole; 0 until a readable record says it."""
    sessions: dict[str, tuple[ScoredTrajectory, Source]] = field(default_factory=dict)
    """Empty once it is handed out: a trainer that commits late holds no trajectories twice."""
    revisions: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Of each session the trajectory's id and revision, for as long as the group isn't finished."""
    unreadable: set[str] = field(default_factory=set)
    """Sessions of which no record could be decoded."""
    is_yielded: bool = False
    staleness: Staleness = field(default_factory=Staleness)

    def has_all(self) -> bool:
        """Whether every session is in, readable or not."""
        return self.size > 0 and len(self.revisions.keys() | self.unreadable) >= self.size

    def put(self, scored: ScoredTrajectory, source: Source) -> None:
        """Take a session, or a revision of one."""
        self.sessions[scored.session_id] = (scored, source)
        self.revisions[scored.session_id] = (scored.trajectory_id, scored.revision)

    def close(self) -> Group:
        """The group as it is now; it has to have all sessions, and they have to be readable."""
        ordered = sorted(self.sessions.values(), key=lambda s: (spec_of(s[0]).index, s[0].session_id))
        scored = tuple(s for s, _ in ordered)
        return Group(self.group_id, spec_of(scored[0]), self.size, scored, tuple(at for _, at in ordered))


def spec_of(scored: ScoredTrajectory) -> SessionSpec:
    """What a record says of its session and group; PoisonError when it belongs to no group."""
    if scored.spec is None or not scored.group_id or not scored.session_id:
        raise PoisonError("spec_missing", f"session {scored.session_id!r} says neither its group nor the group's size")
    return scored.spec
