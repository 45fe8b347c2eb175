"""The one settings object of a stack: flags > POLYNYA_* environment > polynya.toml > defaults.

Only the command line builds it; the parts get the smaller settings objects that `compose.parts` derives.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

ENV_PREFIX = "POLYNYA_"


def default_cache() -> Path:
    """Where downloads live that every stack on this machine shares."""
    return Path(os.environ.get("POLYNYA_CACHE", "~/.cache/polynya")).expanduser()


class StackSettings(BaseSettings):
    """Everything a local stack needs to know; ports are chosen free where they are 0."""

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, toml_file="polynya.toml", extra="forbid", frozen=True)

    state_dir: Path = Path(".polynya")
    bootstrap: str = Field(default="", description="an existing Kafka; empty: one of our own")
    topic_prefix: str = ""
    partitions: int = Field(default=8, ge=1)
    blob_url: str = ""
    archive_dir: Path | None = Field(
        default=None, description="where `run archive` writes; empty: in the state directory"
    )
    kafka_port: int = Field(default=0, ge=0, le=65535)
    brokers: int = Field(default=1, description="1 or 3: the brokers of a Kafka of one's own")

    engine: str = Field(default="cpu", description="cpu, sglang, an engine's URL, or scripted:MODULE:FUNCTION")
    engine_kind: str = Field(
        default="sglang", description="what an engine's URL speaks: sglang, vllm, vllm_chat, openai or cpu"
    )
    engine_options: str = Field(default="", description="options for the SGLang that `up` starts")
    model: str = Field(default="", description="a Hugging Face directory; empty: the built-in tiny model")
    weight_version: str = Field(default="default", description="what the CPU engine calls the weights it begins with")
    engine_port: int = Field(default=0, ge=0, le=65535)
    token_delay_ms: float = Field(default=0.0, ge=0)

    host: str = "127.0.0.1"
    proxy_port: int = Field(default=0, ge=0, le=65535)
    proxy_admin_port: int = Field(default=0, ge=0, le=65535)
    forward: bool = Field(default=True, description="a forward proxy for harnesses with a fixed vendor URL")
    forward_port: int = Field(default=0, ge=0, le=65535)
    forward_vendors: str = Field(default="", description="more hosts to stand for: HOST or HOST/PREFIX=/v1, by commas")
    forward_pass_through: str = Field(default="", description="hosts to let through undecrypted, by commas")
    admin_key: SecretStr | None = None
    proxy_id: str = Field(default="", description="of its own for each proxy; empty: proxy-HOST, for one on a machine")
    spool_dir: Path | None = Field(
        default=None,
        description="shared by a machine's proxies, which adopt what one left; empty: in the state directory",
    )
    ack_wait_ms: float = Field(default=50.0, ge=0)

    api: bool = Field(default=False, description="whether `up` starts the HTTP API, too")
    api_port: int = Field(default=0, ge=0, le=65535)
    api_key: SecretStr | None = None
    api_max_body_bytes: int = Field(default=16 * 1024 * 1024, gt=0)
    api_rate_per_s: float = Field(default=100.0, gt=0)
    api_callback_hosts: str = Field(
        default="", description="where callbacks may go: HOST, HOST:PORT, *.DOMAIN, by commas"
    )
    callback_key: SecretStr | None = Field(default=None, description="signs callbacks")

    workers: int = Field(default=1, ge=1, le=64, description="how many `up` starts")
    proxies: int = Field(default=1, ge=1, le=64, description="how many `up` starts")
    part_name: str = Field(default="", description="of one of several workers or proxies in one state directory")

    policy_id: str = "default"
    worker_id: str = "worker-1"
    init_slots: int = Field(default=4, ge=1)
    ready_slots: int = Field(default=4, ge=1)
    run_slots: int = Field(default=4, ge=1)
    postrun_slots: int = Field(default=4, ge=1)
    heartbeat_s: float = Field(default=1.0, gt=0)
    lease_ttl_s: float = Field(default=15.0, gt=0)
    probe_deadline_s: float = Field(
        default=6.0, gt=0, description="a proxy that answers no look for so long is frozen: its sessions move"
    )
    hold_s: float = Field(default=300.0, gt=0, description="how long a harness is held while there is no proxy")
    seal_grace_s: float = Field(default=20.0, gt=0)
    max_lag_groups: int = Field(
        default=256, ge=1, description="groups admitted ahead of a registered trainer that names no limit of its own"
    )
    artifact_retention_s: float = Field(
        default=14 * 86_400.0, ge=0, description="how long patches, logs and outputs of gradings are kept; 0: for ever"
    )
    processors: str = Field(default="together", pattern="^(together|apart)$")

    @field_validator("forward_vendors")
    @classmethod
    def _readable(cls, value: str) -> str:
        from capture_proxy.vendors import more_vendors

        more_vendors(value)
        return value

    @field_validator("brokers")
    @classmethod
    def _can_vote(cls, value: int) -> int:
        if value not in (1, 3):
            raise ValueError("1 or 3: two brokers can't outvote each other")
        return value

    @field_validator("state_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.expanduser().absolute()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags first, then the environment, then the file."""
        del dotenv_settings, file_secret_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def blobs(self) -> str:
        """Where claim-checked values go."""
        return self.blob_url or f"file://{self.state_dir / 'blobs'}"

    @property
    def proxy_name(self) -> str:
        """How a proxy calls itself in its heartbeats: two under one name would take each other for a restart."""
        return self.proxy_id or f"proxy-{socket.gethostname()}"

    @property
    def worker_dir(self) -> Path:
        """Where this worker's runtimes and logs are: two on one machine must not share it."""
        return self.state_dir / (self.part_name or "worker")

    @property
    def spools(self) -> Path:
        """Where proxies keep what Kafka hasn't acknowledged."""
        return self.spool_dir or self.state_dir / "spool"

    @property
    def archives(self) -> Path:
        """Where the log is archived."""
        return self.archive_dir or self.state_dir / "archive"

    def as_env(self) -> dict[str, str]:
        """The settings as the environment of a child process, so that it builds the same object."""
        env: dict[str, str] = {}
        for name, value in self.model_dump().items():
            if value is None:
                continue
            text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
            env[ENV_PREFIX + name.upper()] = text
        return env


def load(**flags: Any) -> StackSettings:
    """The settings from flags (None: not given), the environment and polynya.toml."""
    return StackSettings(**{k: v for k, v in flags.items() if v is not None})


def admin_key(settings: StackSettings) -> SecretStr:
    """The key of the proxies' admin listener: given, or made once and kept in the state directory (mode 0600)."""
    return settings.admin_key or _kept_key(settings.state_dir / "admin.key")


def api_key(settings: StackSettings) -> SecretStr:
    """The key of the HTTP API: given (POLYNYA_API_KEY), or made and kept likewise."""
    return settings.api_key or _kept_key(settings.state_dir / "api.key")


def callback_key(settings: StackSettings) -> SecretStr:
    """The key that signs callbacks: given (POLYNYA_CALLBACK_KEY), or made and kept likewise."""
    return settings.callback_key or _kept_key(settings.state_dir / "callback.key")


def _kept_key(path: Path) -> SecretStr:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(secrets.token_urlsafe(32))
        partial.replace(path)
    return SecretStr(path.read_text().strip())


def authority_dir(settings: StackSettings) -> Path:
    """Where the certificate authority of the stack's forward proxies is kept."""
    return settings.state_dir / "ca"
