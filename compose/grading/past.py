"""Sessions that are over, as the log has them: task, end, verdicts, artifacts, and where their trajectories stand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import ValidationError

from bus import Bus
from schemas.records import Reward, SessionEvent, SessionEventType, SessionSpec, Trajectory
from schemas.task import TaskSpec
from stage_workers.evaluators import ArtifactReference, EvaluatorError, references_in


@dataclass(slots=True)
class PastSession:
    """What is known of one session; `rewards` holds the newest verdict of each name on the winning lease, `kept` every lease's artifacts."""

    session_id: str
    spec: SessionSpec = field(default_factory=SessionSpec)
    task: TaskSpec | None = None
    end: SessionEvent | None = None
    finished: dict[str, SessionEvent] = field(default_factory=dict)
    kept: dict[str, dict[str, ArtifactReference]] = field(default_factory=dict)
    rewards: dict[str, Reward] = field(default_factory=dict)
    is_forgotten: bool = False
    problem: str = ""

    @property
    def lease_id(self) -> str:
        """The lease that counts."""
        return self.end.winning_lease if self.end else ""

    @property
    def artifacts(self) -> dict[str, ArtifactReference]:
        """What the gradings of the lease that counts kept (another attempt's patch is another patch); before the end, the last one's."""
        if self.end is None:
            return next(reversed(self.kept.values()), {})
        return self.kept.get(self.lease_id, {})

    @property
    def why_not(self) -> str:
        """Why it can't be graded again; empty where it can."""
        if self.problem:
            return self.problem
        if self.end is None:
            return "it hasn't ended yet"
        if self.is_forgotten:
            return "its retention is over: the joiner has let it go"
        if not self.lease_id:
            return "none of its attempts ever ran"
        return "" if self.task else "its task isn't on the log any more"


async def past_sessions(
    bus: Bus, *, tasks: Iterable[str] = (), groups: Iterable[str] = (), sessions: Iterable[str] = ()
) -> list[PastSession]:
    """The sessions of these tasks, of these groups, and these sessions by themselves, in the order in which they were registered."""
    wanted_tasks, wanted_groups, wanted = set(tasks), set(groups), set(sessions)
    found: dict[str, PastSession] = {}
    async for delivery in bus.tail(["rollout.sessions"], start="earliest", until_end=True):
        event = delivery.decode() if delivery.value else None
        if not isinstance(event, SessionEvent):
            continue
        is_meant = event.session_id in wanted or event.task_id in wanted_tasks or event.group_id in wanted_groups
        if is_meant or event.session_id in found:
            _apply(found.setdefault(event.session_id, PastSession(event.session_id)), event)
    if found:
        async for delivery in bus.tail(["reward.assigned"], start="earliest", until_end=True):
            if (delivery.key or b"").decode() not in found:
                continue
            reward = delivery.decode()
            if isinstance(reward, Reward):
                session = found[reward.session_id]
                session.kept.setdefault(reward.lease_id, {}).update(references_in(reward.details))
                if reward.lease_id == session.lease_id:
                    session.rewards[reward.name] = reward
    return list(found.values())


def _apply(session: PastSession, event: SessionEvent) -> None:
    if event.spec is not None:
        session.spec = event.spec
    if event.task is not None and session.task is None:
        try:
            session.task = TaskSpec.model_validate(event.task)
        except ValidationError as exc:
            session.problem = f"its task can't be read: {exc.error_count()} fields are wrong"
    if event.type is SessionEventType.FINISHED:
        session.finished[event.lease_id] = event
    elif event.type is SessionEventType.GRADED:
        session.kept.setdefault(event.lease_id, {}).update(references_in(event.details))
    elif event.type is SessionEventType.ENDED:
        session.end = session.end or event
    elif event.type is SessionEventType.FORGOTTEN:
        session.is_forgotten = True


async def trajectory_of(bus: Bus, session: PastSession) -> Trajectory:
    """The winning lease's trajectory in its newest revision. Raises EvaluatorError when the log has none."""
    topic = "trajectory.built"
    partition = await bus.partition_for(topic, session.session_id)
    key = session.session_id.encode()
    offsets = [
        delivery.offset
        async for delivery in bus.tail([topic], partitions=[partition], until_end=True, resolved=False)
        if delivery.key == key
    ]
    built: Trajectory | None = None
    for delivery in await bus.at(topic, partition, offsets) if offsets else []:
        record = delivery.decode()
        if isinstance(record, Trajectory) and record.lease_id == session.lease_id:
            built = record if built is None or record.revision > built.revision else built
    if built is None:
        raise EvaluatorError("its trajectory isn't on the log any more")
    return built
