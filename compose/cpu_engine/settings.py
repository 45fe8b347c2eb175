"""What the engine is told when it starts."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_validator

POLICY_SCHEME = "scripted:"


class EngineSettings(BaseModel):
    """Start-up settings of one engine process; each field is also an option of `python -m compose.cpu_engine`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Path
    """Hugging Face model directory with weights, tokenizer and chat template."""
    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65_535)
    """0 takes a free port; the ready line and `port_file` say which."""
    policy: str | None = None
    """`scripted:MODULE:FUNCTION` chooses the text of replies; None samples from the model."""
    port_file: Path | None = None
    """Written (atomically) with the port number once the server accepts requests."""
    served_model_name: str | None = None
    """Name in `/v1/models`; by default the model's path."""
    weight_version: str = "default"
    incremental_streaming_output: bool = False
    """Stream events carry only what is new, rather than everything so far."""
    stream_interval_ms: float = Field(default=0.0, ge=0.0)
    """Least time between two stream events of one reply, but for its last: what comes faster shares one. Each costs everyone on its way more
    than a tiny model's token does."""
    context_length: int | None = Field(default=None, ge=2)
    """Prompt and reply together, in tokens; by default what the model's config says."""
    threads: int = Field(default=1, ge=1)
    """Compute threads of torch. More than one slows a tiny model down, several times over on a busy machine."""
    max_running_requests: int = Field(default=256, ge=1)
    """Requests that sample in the same step; the others wait."""
    chunk_tokens: int = Field(default=8_192, ge=16)
    """Prompt tokens computed per step: bounds how long running replies wait for a new prompt."""
    cache_tokens: int | None = Field(default=None, ge=0)
    """Bound of the prefix cache; by default what fits into 1 GiB, at most a million tokens."""
    token_delay_ms: float = Field(default=0.0, ge=0.0)
    """Least time between two tokens of one reply; a scripted reply may set its own."""

    @field_validator("policy")
    @classmethod
    def _is_scripted(cls, value: str | None) -> str | None:
        if value is None:
            return None
        module, _, function = value.removeprefix(POLICY_SCHEME).partition(":")
        if not value.startswith(POLICY_SCHEME) or not module or not function:
            raise ValueError(f"policy must read scripted:MODULE:FUNCTION, got {value!r}")
        return value
