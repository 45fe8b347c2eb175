"""Requests to `/v1/chat/completions`: a conversation in, and as much about its tokens as the server can be made to give. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from capture_proxy.engines.base import ChatPrompt, GenerateRequest
from capture_proxy.engines.vllm_wire import sampling_params

CHAT_PATH: Final = "/v1/chat/completions"

_STANDARD: Final = frozenset(
    {"temperature", "top_p", "max_tokens", "seed", "stop", "frequency_penalty", "presence_penalty"}
)
"""What every OpenAI-compatible server takes; the rest goes only to those that know it."""

_NEUTRAL: Final[Mapping[str, Any]] = {
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "stop_token_ids": [],
    "ignore_eos": False,
}
"""Values with which leaving a parameter out changes nothing."""


@dataclass(frozen=True, slots=True)
class Asking:
    """One way to ask for tokens. `extras` are fields of the request beyond OpenAI's; `is_streamed` whether it works in a stream."""

    is_streamed: bool
    has_logprobs: bool
    extras: tuple[str, ...] = ()


VLLM_ASKINGS: Final = (
    Asking(is_streamed=True, has_logprobs=True, extras=("return_token_ids",)),
    Asking(is_streamed=True, has_logprobs=False, extras=("return_token_ids",)),
    Asking(is_streamed=True, has_logprobs=False),
)
OPENAI_ASKINGS: Final = (
    VLLM_ASKINGS[0],
    # SGLang gives ids in whole answers only; its client is then shown the text at the end.
    Asking(
        is_streamed=False, has_logprobs=True, extras=("return_token_ids", "return_prompt_token_ids", "return_meta_info")
    ),
    Asking(is_streamed=True, has_logprobs=True),
    Asking(is_streamed=True, has_logprobs=False),
)
"""From the best to the least; a probe tries them in this order and keeps the one that gives most."""


def request_body(request: GenerateRequest, asking: Asking, *, model: str, knows_extensions: bool) -> bytes:
    """The request as chat. `knows_extensions`: the server takes vLLM's sampling parameters, and template options."""
    chat = request.chat or ChatPrompt(messages=[])
    body: dict[str, Any] = {
        "model": model,
        "messages": chat.messages,
        **chat_sampling(request, knows_extensions=knows_extensions),
    }
    if chat.tools:
        body["tools"] = chat.tools
        if chat.tool_choice is not None:
            body["tool_choice"] = chat.tool_choice
        if not chat.parallel_tool_calls:
            body["parallel_tool_calls"] = False
    if chat.response_format is not None:
        body["response_format"] = chat.response_format
    if chat.template_kwargs and knows_extensions:
        body["chat_template_kwargs"] = chat.template_kwargs
    if asking.has_logprobs:
        body["logprobs"] = True
        if request.top_logprobs:
            body["top_logprobs"] = request.top_logprobs
    body |= dict.fromkeys(asking.extras, True)
    if asking.is_streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return orjson.dumps(body)


def chat_sampling(request: GenerateRequest, *, knows_extensions: bool) -> dict[str, Any]:
    """Sampling in the server's words. The length is the client's own limit, if any: the server knows its context better."""
    chat = request.chat
    sampling = {**request.sampling, "max_tokens": chat.max_tokens if chat is not None else None}
    if knows_extensions:
        params = sampling_params(sampling)
        # The server's own stop ids are the same, and named ones would be reported as matched stops.
        params.pop("stop_token_ids", None)
        return params
    return {name: value for name, value in sampling.items() if name in _STANDARD and value is not None and value != []}


def unsent(sampling: Mapping[str, Any]) -> list[str]:
    """Sampling parameters that a plain OpenAI server isn't sent although they would change what it samples."""
    known = _STANDARD | {"json_schema", "stop_token_ids"}
    return sorted(
        name for name, value in sampling.items() if name not in known and value not in (None, _NEUTRAL.get(name))
    )
