"""The request bodies of SGLang's HTTP interface, as far as this engine understands them, and its error shapes.

Types are strict where SGLang's are (a wrong type is a 400). Unknown fields are accepted, as in SGLang. A known option
that this engine can't honour is refused rather than ignored: a silently different distribution would poison training data.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

DEFAULT_MAX_NEW_TOKENS = 128  # SGLang's
MAX_SEED = 2**63 - 1
GRAMMARS = ("json_schema", "regex", "ebnf", "structural_tag")


class RequestError(ValueError):
    """A request that can't be served as asked; becomes HTTP `status` with SGLang's error shape."""

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class _Body(BaseModel):
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


class SamplingParams(_Body):
    """`sampling_params` of `/generate`."""

    max_new_tokens: int | None = Field(default=DEFAULT_MAX_NEW_TOKENS, ge=0)
    temperature: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = -1
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    sampling_seed: int | None = Field(default=None, ge=-(2**63), le=MAX_SEED)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    no_stop_trim: bool = False

    @field_validator("top_k")
    @classmethod
    def _is_positive_or_off(cls, value: int) -> int:
        if value < 1 and value != -1:
            raise ValueError(f"top_k must be -1 (disable) or at least 1, got {value}.")
        return value

    @model_validator(mode="after")
    def _is_supported(self) -> SamplingParams:
        extra = self.model_extra or {}
        neutral = {
            "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "min_new_tokens": 0, "n": 1
        }  # fmt: skip
        for name, value in neutral.items():
            if extra.get(name, value) not in (None, value):
                raise ValueError(f"{name} is not supported by this engine")
        for name in ("stop_regex", "logit_bias"):
            if extra.get(name):
                raise ValueError(f"{name} is not supported by this engine")
        return self

    @property
    def grammars(self) -> list[str]:
        """The names of what constrains the output: only a policy, which sees the request, can honour them."""
        return [name for name in GRAMMARS if (self.model_extra or {}).get(name)]

    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings as a tuple, without empty ones."""
        stops = [self.stop] if isinstance(self.stop, str) else (self.stop or [])
        return tuple(stop for stop in stops if stop)


class GenerateRequest(_Body):
    """Body of `/generate`. `input_ids` wins over `text`, as in SGLang."""

    rid: str | None = None
    text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: SamplingParams = SamplingParams()
    stream: bool = False
    return_logprob: bool = False
    logprob_start_len: int | None = None
    top_logprobs_num: int | None = Field(default=None, ge=0)
    return_text_in_logprobs: bool = False
    return_prompt_token_ids: bool = False

    @field_validator("sampling_params", mode="before")
    @classmethod
    def _null_is_empty(cls, value: Any) -> Any:
        return {} if value is None else value  # SGLang takes null for unset here and below

    @field_validator("stream", "return_logprob", "return_text_in_logprobs", "return_prompt_token_ids", mode="before")
    @classmethod
    def _null_is_false(cls, value: Any) -> Any:
        return False if value is None else value

    @model_validator(mode="after")
    def _is_supported(self) -> GenerateRequest:
        if self.text is None and self.input_ids is None:
            raise ValueError("Either text or input_ids should be provided.")
        if self.logprob_start_len not in (None, -1):
            raise ValueError(
                "logprob_start_len other than -1 (log-probabilities of the prompt) is not supported by this engine"
            )
        for name in (
            "input_embeds",
            "image_data",
            "lora_path",
            "custom_logit_processor",
            "token_ids_logprob",
            "return_sampling_mask",
        ):
            if (self.model_extra or {}).get(name):
                raise ValueError(f"{name} is not supported by this engine")
        return self


class AbortRequest(_Body):
    """Body of `/abort_request`."""

    rid: str | None = None
    abort_all: bool = False


class PauseRequest(_Body):
    """Body of `/pause_generation`."""

    mode: Literal["abort", "retract", "in_place"] = "abort"


class UpdateWeightsRequest(_Body):
    """Body of `/update_weights_from_disk`."""

    model_path: str
    abort_all_requests: bool = False
    weight_version: str | None = None
    flush_cache: bool = True


class UpdateVersionRequest(_Body):
    """Body of `/update_weight_version`; it aborts everything unless told not to."""

    new_version: str
    abort_all_requests: bool = True


class TokenizeRequest(_Body):
    """Body of `/v1/tokenize`: a prompt, or messages for the chat template."""

    prompt: str | list[str] | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    @model_validator(mode="after")
    def _has_one(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("Exactly one of 'prompt' or 'messages' must be provided.")
        return self


class DetokenizeRequest(_Body):
    """Body of `/detokenize`."""

    tokens: list[int] | list[list[int]]
    skip_special_tokens: bool = True


def describe(exc: ValidationError) -> str:
    """One line for all violations: `field: what is wrong`, separated by semicolons."""
    parts = []
    for error in exc.errors(include_url=False, include_input=False):
        where = ".".join(str(piece) for piece in error["loc"])
        message = error["msg"].removeprefix("Value error, ")
        parts.append(f"{where}: {message}" if where else message)
    return "; ".join(parts)


def flat_error(message: str, status: int) -> dict[str, object]:
    """SGLang's error for a body that doesn't have the route's schema."""
    return {"object": "error", "message": message, "type": "Bad Request", "param": None, "code": status}


def stream_error(message: str, status: int) -> dict[str, object]:
    """SGLang's error inside a stream that has begun."""
    return {"error": {"message": message, "type": "invalid_request_error", "code": status, "retryable": False}}
