"""The orchestrator's row per session: where it stands, who holds it, and what the last move was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from schemas.records import Boundary, Stage, Status

EXTERNAL = "external"
"""Owner and worker id of attached sessions: nobody of ours runs them."""


@dataclass(frozen=True, slots=True)
class Times:
    """A session's limits, from its task."""

    queue_s: float = 3600.0
    init_s: float = 300.0
    run_s: float = 1800.0
    postrun_s: float = 300.0
    evaluate_s: float = 300.0


@dataclass(frozen=True, slots=True)
class SessionRow:
    """Where a session stands. It changes only on a fact of rollout.sessions, whose offset is `version`.

    `move` names what that fact did: together with the fact it determines the outputs, so that a fact that is delivered again
    at the row's version causes the same outputs again.
    """

    session_id: str
    group_id: str = ""
    task_id: str = ""
    policy_id: str = ""
    harness: str = ""
    owner: str = "worker"
    priority: int = 0
    max_attempts: int = 1
    times: Times = field(default_factory=Times)
    registered_at: int = 0
    deadline_at: int = 0
    """Of an attached session, absolute."""

    stage: Stage = Stage.UNKNOWN
    since_at: int = 0
    """When the session came into its stage."""
    queued_at: int = 0
    """From when on its attempt's time in the queue counts: a worker that declined didn't begin it anew."""
    attempt: int = 1
    round: int = 0
    inits_lost: int = 0
    """How often this attempt's worker disappeared while it prepared the session."""
    worker_id: str = ""
    incarnation: str = ""
    lease_id: str = ""
    is_open: bool = False
    """Whether the lease is granted and not sealed."""
    is_commanded: bool = False
    """Whether the lease's holder was told to run: the grant may stand on the log twice."""
    writers: tuple[int, ...] = ()
    status: Status = Status.NONE
    boundary: Boundary = Boundary.NONE
    error: str = ""
    ending: Status = Status.NONE
    """TIMEOUT or CANCELLED once its holder was asked to end the lease; it gets a moment to seal it by itself."""
    rewards: tuple[str, ...] = ()
    expects_reward: bool = False
    sealing: Mapping[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """Sealed leases without a trajectory, whose grace isn't over: lease → (sealed at, writers)."""
    is_told: bool = False
    """Whether the terminal fact stands on the log."""

    version: int = -1
    partition: int = -1
    """Of rollout.sessions: whoever has it keeps the session's time."""
    move: str = ""
    moved_at: int = 0

    @property
    def is_external(self) -> bool:
        """Whether somebody else runs it."""
        return self.owner == EXTERNAL

    @property
    def names(self) -> dict[str, str]:
        """What a control may call it by, per kind of target."""
        return {"session": self.session_id, "group": self.group_id, "task": self.task_id, "policy": self.policy_id}

    @property
    def name(self) -> str:
        """Its key in the table."""
        return self.session_id

    @property
    def is_live(self) -> bool:
        """Whether time can still do something to it."""
        return self.stage is not Stage.ENDED or bool(self.sealing)

    def to_bytes(self) -> bytes:
        """The row as the table holds it."""
        return orjson.dumps(self)

    @classmethod
    def from_bytes(cls, raw: bytes) -> SessionRow:
        """The row behind a table's value."""
        data: dict[str, Any] = orjson.loads(raw)
        data["times"] = Times(**data["times"])
        data["stage"] = Stage(data["stage"])
        data["status"], data["ending"] = Status(data["status"]), Status(data["ending"])
        data["boundary"] = Boundary(data["boundary"])
        data["writers"], data["rewards"] = tuple(data["writers"]), tuple(data["rewards"])
        data["sealing"] = {lease: (at, tuple(writers)) for lease, (at, writers) in data["sealing"].items()}
        return cls(**data)
