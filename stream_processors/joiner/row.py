"""The joiner's small row per session: how it ended, its rewards, and what was last emitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from schemas.records import Boundary, Reward, RewardValue, SessionEvent, SessionSpec, Status


@dataclass(frozen=True, slots=True)
class End:
    """What the terminal fact says."""

    status: Status
    boundary: Boundary
    error: str
    attempt: int
    winning_lease: str
    expects_trajectory: bool
    expects_reward: bool
    rewards: tuple[str, ...]
    """Names of the rewards that must be in; empty: any one."""
    at: int

    @classmethod
    def of(cls, event: SessionEvent) -> End:
        """The end that a terminal event tells."""
        return cls(
            status=event.status,
            boundary=event.boundary,
            error=event.error,
            attempt=event.attempt,
            winning_lease=event.winning_lease,
            expects_trajectory=event.expects_trajectory,
            expects_reward=event.expects_reward,
            rewards=tuple(event.rewards),
            at=event.at,
        )


@dataclass(frozen=True, slots=True)
class StoredReward:
    """A reward as it stands on the log: its event id, the lease that it grades, and its value."""

    event_id: str
    lease_id: str
    value: RewardValue

    @classmethod
    def of(cls, reward: Reward) -> StoredReward:
        """What the row keeps of a reward."""
        value = RewardValue(
            name=reward.name,
            value=reward.value,
            trace_rewards=reward.trace_rewards,
            grader=reward.grader,
            grader_version=reward.grader_version,
            provenance=reward.provenance,
        )
        return cls(reward.event_id, reward.lease_id, value)


@dataclass(frozen=True, slots=True)
class KeptTrajectory:
    """One revision of a lease's trajectory: its content's digest, and the offset on trajectory.built where it can be read."""

    digest: str
    offset: int
    revision: int = 1


@dataclass(frozen=True, slots=True)
class SessionRow:
    """What the joiner knows of a session; `trajectories` holds each lease's revisions in order.

    `revision` and `emitted` (a content digest) are of the last scored trajectory; 0 and '' before the first.
    """

    spec: SessionSpec | None = None
    end: End | None = None
    rewards: tuple[StoredReward, ...] = ()
    trajectories: Mapping[str, tuple[KeptTrajectory, ...]] = field(default_factory=dict)
    revision: int = 0
    emitted: str = ""

    def to_bytes(self) -> bytes:
        """The row as the table holds it."""
        return orjson.dumps(self, option=orjson.OPT_NON_STR_KEYS)

    @classmethod
    def from_bytes(cls, raw: bytes | None) -> SessionRow:
        """The row behind a table's value; an empty one for None."""
        if raw is None:
            return cls()
        data: dict[str, Any] = orjson.loads(raw)
        spec, end = data.pop("spec"), data.pop("end")
        if end is not None:
            names = {"status": Status(end["status"]), "boundary": Boundary(end["boundary"])}
            end = End(**{**end, **names, "rewards": tuple(end["rewards"])})
        rewards = tuple(
            StoredReward(r["event_id"], r["lease_id"], RewardValue(**r["value"])) for r in data.pop("rewards")
        )
        trajectories = {
            # A row of an older release holds one trajectory per lease.
            lease: tuple(KeptTrajectory(**k) for k in (kept if isinstance(kept, list) else [kept]))
            for lease, kept in data.pop("trajectories").items()
        }
        spec = None if spec is None else SessionSpec(**spec)
        return cls(**data, spec=spec, end=end, rewards=rewards, trajectories=trajectories)
