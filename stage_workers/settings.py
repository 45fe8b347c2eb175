"""Everything that a stage worker needs to be told, in one frozen object."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class WorkerSettings(BaseModel):
    """Settings of one worker process; the command line fills them, nothing here reads the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    worker_id: str = Field(min_length=1, description="stable over restarts; stage commands are keyed by it")
    state_dir: Path = Field(description="runtimes and logs of sessions; one worker at a time")
    admin_key: SecretStr = Field(description="the bearer key of the proxies' admin listeners")
    cache_dir: Path | None = Field(
        default=None, description="where harnesses are installed; the user's cache by default"
    )

    init_slots: int = Field(default=2, ge=1, description="sessions prepared at a time")
    ready_slots: int = Field(default=2, ge=1, description="prepared sessions that wait for a lease, with those in INIT")
    run_slots: int = Field(
        default=4, ge=1, description="harnesses at a time, with sealed sessions that wait for grading"
    )
    postrun_slots: int = Field(default=2, ge=1, description="sessions graded at a time")

    heartbeat_s: float = Field(default=2.0, gt=0)
    proxy_fresh_s: float = Field(default=15.0, gt=0, description="a proxy that was silent for longer isn't chosen")
    open_deadline_s: float = Field(default=30.0, gt=0, description="to find a proxy and open the lease there")
    seal_deadline_s: float = Field(
        default=45.0, gt=0, description="to seal there; past it the assembler's grace decides"
    )
    probe_every_s: float = Field(default=2.0, gt=0, description="between looks at a proxy that keeps a harness waiting")
    probe_deadline_s: float = Field(
        default=6.0, gt=0, description="a proxy that doesn't answer a look for so long is frozen: its leases move"
    )
    hold_s: float = Field(
        default=300.0, gt=0, description="how long a harness' connection is held while no proxy is there"
    )
    resend_bytes: int = Field(
        default=32 * 1024 * 1024, ge=0, description="of one request that are kept until its answer begins"
    )
    resend_total_bytes: int = Field(default=512 * 1024 * 1024, ge=0, description="of all of them")
    run_command_wait_s: float = Field(default=60.0, gt=0, description="from the fact `granted` to the command to run")
    kill_grace_s: float = Field(default=2.0, ge=0, description="from SIGTERM to SIGKILL at a time-out")
    drain_s: float = Field(default=0.0, ge=0, description="how long a stopping worker lets its sessions go on")
    flush_deadline_s: float = Field(
        default=15.0, gt=0, description="how long a stopping worker tries to tell its facts"
    )
    log_limit_bytes: int = Field(default=4 * 1024 * 1024, ge=1024, description="of each output stream of a harness")
    keep_logs: int = Field(default=2000, ge=0, description="sessions whose logs are kept; the oldest go first")
    artifact_retention_s: float = Field(
        default=14 * 86_400.0, ge=0, description="how long patches, logs and outputs of gradings are kept; 0: for ever"
    )
    sweep_every_s: float = Field(
        default=60.0, gt=0, description="between looks for what runs, or lies there, for no session that is held"
    )
    keep_work: bool = Field(default=False, description="leave sessions' directories behind, to look into them")
