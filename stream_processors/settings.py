"""Everything that the stream processors need to know from outside."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from bus import BusSettings


class ProcessorSettings(BaseModel):
    """Settings of all three processors. Frozen; only the command line reads the environment to make one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bus: BusSettings = Field(default_factory=BusSettings)

    tick_s: float = Field(default=0.25, gt=0)
    """How often the orchestrator looks at clocks and free slots."""
    lease_ttl_s: float = Field(default=15.0, gt=0)
    """A lease expires when its holder's heartbeats have been missing that long: several of a worker's intervals."""
    seal_grace_s: float = Field(default=30.0, gt=0)
    """After a lease's seal the assembler waits that long for what its writers still owe."""
    end_grace_s: float = Field(default=20.0, gt=0)
    """A worker that was asked to end a run (deadline, cancellation) has that long to kill, seal and tell."""
    command_grace_s: float = Field(default=15.0, gt=0)
    """A worker that was assigned a session must list it in a heartbeat after that long."""
    max_lag_groups: int = Field(default=256, ge=1)
    """Groups that may be admitted ahead of a trainer that names no limit of its own; without a trainer there is none."""
    forget_after_s: float = Field(default=14 * 24 * 3600.0, gt=0)
    """So long after its end nothing of a session stays in the tables and in rollout.state: the retention of rollout.sessions."""
