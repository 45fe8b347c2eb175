"""Everything that a capture proxy needs to be told, in one frozen object."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from bus.settings import BusSettings
from capture_proxy.vendors import VENDORS, Vendor


class EngineSettings(BaseModel):
    """One engine and the policy that it serves ('*': any policy that has no engine of its own)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    policy_id: str = "*"
    kind: str = "sglang"
    """sglang, cpu, vllm, vllm_chat or openai."""
    api_key: SecretStr | None = None


class ProxySettings(BaseModel):
    """Settings of one proxy process. Ports of 0 are chosen free; `ports_file` then says which."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    proxy_id: str = Field(default_factory=lambda: f"proxy-{socket.gethostname()}")
    bus: BusSettings = Field(default_factory=BusSettings)
    spool_dir: Path
    """One directory per machine, shared by its proxies: each adopts what a dead one left there."""
    model_dir: Path
    """The tokenizer and the chat template of the model that the engines serve."""
    model_family: str | None = None
    """Names the rendering library's format; guessed from the model directory when left out."""
    model_names: tuple[str, ...] = ("policy",)
    """What the model-listing endpoints show."""
    engines: tuple[EngineSettings, ...] = ()
    """More come from `policy.timeline`."""
    admin_key: SecretStr

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    admin_host: str = "127.0.0.1"
    admin_port: int = Field(default=0, ge=0, le=65535)
    advertise_host: str | None = None
    """The host name in the addresses that heartbeats announce; default: `host`."""
    ports_file: Path | None = None

    forward_host: str = "127.0.0.1"
    forward_port: int | None = Field(default=None, ge=0, le=65535)
    """The forward listener for closed harnesses; None: there is none."""
    forward_vendors: tuple[Vendor, ...] = VENDORS
    """The hosts that it stands for."""
    forward_pass_through: tuple[str, ...] = ()
    """`host` or `host:port` (443) that it lets through undecrypted, for clients with an open lease: package mirrors."""
    authority_dir: Path | None = None
    """Where its certificate authority is kept; default: `ca` beside the spool."""

    engine_status_wait_s: float = Field(default=5.0, gt=0)
    """So long a stream waits for the engine's status, so that an early error is still a status code."""
    keepalive_s: float = Field(default=5.0, gt=0, le=10.0)
    """Silence after which the client is shown a sign of life; no harness waits less than 15 s."""
    call_timeout_s: float = Field(default=1800.0, gt=0)
    stalled_s: float = Field(default=300.0, gt=0)
    """So long a client may take none of its stream before its call is given up."""
    max_resumes: int = Field(default=8, ge=0)
    """How often a reply goes on that the engine aborted by itself (it takes new weights); 0: the client is asked to send it again."""
    ack_wait_ms: float = Field(default=50.0, ge=0)
    """So long a finish waits for Kafka alone; then the spool's fsync counts too."""
    commit_timeout_s: float = Field(default=60.0, gt=0)
    """When neither Kafka nor the disk has made a record durable by then, the call ends with an error."""
    spool_limit_bytes: int = Field(default=2 << 30, gt=0)
    """Unacknowledged bytes above which new calls are refused before they go upstream."""
    spool_segment_bytes: int = Field(default=64 << 20, gt=0)
    max_request_bytes: int = Field(default=64 << 20, gt=0)
    """Of one request's body, as sent and as decoded; above it a request is refused (413) without reading the rest."""
    max_bodies_bytes: int = Field(default=1 << 30, gt=0)
    """Of all bodies that are being read; above it requests are refused (429)."""
    max_calls: int = Field(default=4096, gt=0)
    """Calls in flight above which new ones are refused (429)."""
    max_loop_lag_s: float = Field(default=1.0, gt=0)
    """When the event loop is this late several times in a row, new calls are refused (429)."""
    request_read_s: float = Field(default=300.0, gt=0)
    """So long a request's body may take to come."""
    seal_drain_s: float = Field(default=10.0, ge=0)
    """So long a seal waits for running calls before it aborts them."""
    seal_delivery_s: float = Field(default=5.0, ge=0)
    """So long a seal waits, after that, for the last delivery facts."""
    handover_s: float = Field(default=5.0, ge=0)
    """So long a stopping proxy keeps the leases open whose workers can move them to another one."""
    stop_relay_s: float = Field(default=10.0, ge=0)
    """So long a stopping proxy goes on relaying; the rest stays in the spool for the next one."""
    lineage_max_bytes: int = Field(default=1 << 30, gt=0)
    """Of all sessions' earlier calls in memory; above it the idle ones are let go, and read back from the log when they go on."""
    takeover_wait_s: float = Field(default=20.0, gt=0)
    """So long a call waits until its session's earlier calls are read back; then it goes on without them, and says so."""
    heartbeat_s: float = Field(default=2.0, gt=0)
    adopt_every_s: float = Field(default=5.0, gt=0)

    logprobs_mode: str | None = None
    """raw, temperature or processed: an engine whose logprobs are measured to be of another kind is refused."""
    context_length: int | None = Field(default=None, gt=0)
    """Overrides what the engine says of itself."""
    default_max_tokens: int = Field(default=32_768, gt=0)
    """For requests that don't limit their answer; never more than the context has room for."""
    sampling_defaults: dict[str, Any] = Field(default_factory=dict)
    """Used where neither the request nor the task says anything."""

    @model_validator(mode="after")
    def _has_a_key(self) -> ProxySettings:
        if not self.admin_key.get_secret_value():
            raise ValueError("admin_key is empty: set POLYNYA_ADMIN_KEY, which opens and seals leases")
        return self
