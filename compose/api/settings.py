"""What one HTTP API process is told; made by `compose.parts` from the stack's settings."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class ApiSettings(BaseModel):
    """How the API listens, whom it lets in, what it holds and which callbacks it makes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: SecretStr
    """What callers send as `Authorization: Bearer KEY`."""
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    port_file: Path | None = None
    """Where a port that was chosen free is remembered, so that a restarted process has the same address."""

    max_body_bytes: int = Field(default=16 * 1024 * 1024, gt=0)
    """A batch of a thousand tasks with their files fits; a larger body is answered with 413."""
    body_within_s: float = Field(default=30.0, gt=0)
    """How long a body may take to come."""
    rate_per_s: float = Field(default=100.0, gt=0)
    """Requests per second and caller's address, on average."""
    rate_burst: int = Field(default=300, ge=1)
    """Requests that may come at once."""

    max_sessions: int = Field(default=200_000, ge=1)
    """Sessions in memory (about 2 KiB each); beyond that the tasks that ended longest ago are forgotten."""
    caught_up_within_s: float = Field(default=10.0, ge=0)
    """How long a read waits after a start until the log has been read; then it is answered with 503."""
    longest_wait_s: float = Field(default=30.0, ge=0)
    """How long a question for a task's end is held at most."""
    publish_within_s: float = Field(default=15.0, gt=0)
    """How long a submission waits for Kafka; then it is answered with 503."""
    page_bytes: int = Field(default=32 * 1024 * 1024, gt=0)
    """A page of trajectories ends before it is larger than this (one trajectory always fits)."""
    inline_bytes: int = Field(default=64 * 1024 * 1024, gt=0)
    """Encoded results that one Polar-shaped body holds at most."""

    callback_key: SecretStr | None = None
    """Signs callbacks; without it none is made."""
    callback_hosts: tuple[str, ...] = ()
    """Where callbacks may go: `host`, `host:port` or `*.domain`. Nothing else is called."""
    callback_timeout_s: float = Field(default=10.0, gt=0)
    callback_deadline_s: float = Field(default=3600.0, gt=0)
    """How long after a result its callback is tried."""
    callback_first_pause_s: float = Field(default=1.0, gt=0)
    callback_longest_pause_s: float = Field(default=60.0, gt=0)
