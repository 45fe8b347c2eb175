"""vLLM's `/inference/v1/generate` as values: the request body and the events of its stream. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from capture_proxy.engines.base import Alternatives, EngineChunk, EngineFinish, GenerateRequest
from capture_proxy.engines.errors import error_of
from capture_proxy.engines.spans import MIXED, tile, weight_spans
from capture_proxy.engines.sse import DONE, EventSplitter, parse_event
from capture_proxy.engines.values import are_logprobs, checked_ids, finish_reason
from capture_proxy.reply import ProxyError
from capture_proxy.token_ids import dump_json

GENERATE_PATH: Final = "/inference/v1/generate"
ID_PREFIX: Final = "generate-tokens-"
"""vLLM puts it before the request's id, and aborts by the whole."""

PASSED: Final = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "max_tokens",
        "seed",
        "stop",
        "stop_token_ids",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "ignore_eos",
    }
)
"""Sampling parameters that vLLM calls as we do."""
_NAMES: Final[Mapping[str, str]] = {"min_new_tokens": "min_tokens"}
_GRAMMARS: Final[Mapping[str, str]] = {
    "json_schema": "json",
    "regex": "regex",
    "ebnf": "grammar",
    "structural_tag": "structural_tag",
}
KNOWN: Final = PASSED | _NAMES.keys() | _GRAMMARS.keys()
"""Sampling parameters that arrive."""


def sampling_params(sampling: Mapping[str, Any]) -> dict[str, Any]:
    """Our sampling parameters in vLLM's words; what isn't set is left out."""
    known = PASSED | _NAMES.keys()
    params = {_NAMES.get(name, name): value for name, value in sampling.items() if name in known and value is not None}
    if params.get("top_k", 1) < 1:
        params["top_k"] = 0  # off
    return params


def request_body(request: GenerateRequest) -> bytes:
    """Token-in, streamed, with the sampled token's logprob and the final prompt ids."""
    params = {**sampling_params(request.sampling), "logprobs": request.top_logprobs, "skip_special_tokens": False}
    grammar = {
        word: request.sampling[name] for name, word in _GRAMMARS.items() if request.sampling.get(name) is not None
    }
    if grammar:
        params["structured_outputs"] = grammar
    return dump_json(
        {
            "request_id": request.rid,
            "token_ids": request.input_ids,
            "sampling_params": params,
            "return_token_ids": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )


class VllmReader:
    """The chunks of one stream. Events hold what is new; spans and the stop stand on the last with tokens, counts on one more."""

    __slots__ = ("_count", "_last", "_prompt_ids", "_spans", "_splitter", "_usage", "is_done")

    def __init__(self) -> None:
        self._splitter = EventSplitter()
        self._count = 0
        self._last: Mapping[str, Any] | None = None
        self._prompt_ids: list[int] | None = None
        self._spans: Any = None
        self._usage: Mapping[str, Any] = {}
        self.is_done = False

    def feed(self, data: bytes) -> Iterator[EngineChunk]:
        """The chunks completed by `data`. Raises ProxyError at an error event, after the chunks before it."""
        for event in self._splitter.feed(data):
            if event == DONE:
                self.is_done = True
                yield from self.end()
                return
            value = parse_event(event)
            if "error" in value:
                raise error_of(value, None)
            try:
                chunk = self._chunk(value)
            except (TypeError, ValueError, LookupError, AttributeError) as error:
                raise ProxyError("engine_error", f"the engine sent an event of another shape: {error!r}") from error
            if chunk is not None:
                yield chunk

    def end(self) -> Iterator[EngineChunk]:
        """The finish, if the engine gave a reason for one."""
        if self._last is not None:
            last, self._last = self._last, None
            yield EngineChunk([], [], self._finish(last))

    def _chunk(self, value: Mapping[str, Any]) -> EngineChunk | None:
        if value.get("prompt_token_ids"):
            self._prompt_ids = checked_ids(value["prompt_token_ids"])
        self._usage = value.get("usage") or self._usage
        choices = value.get("choices") or []
        if not choices:
            return None
        choice = choices[0]
        ids = checked_ids(choice.get("token_ids") or [])
        entries = (choice.get("logprobs") or {}).get("content") or []
        if entries and [entry["token_id"] for entry in entries] != ids:
            raise ProxyError("engine_error", "the engine's logprobs belong to other token ids than its output")
        self._count += len(ids)
        self._spans = choice.get("weight_versions") or self._spans
        if choice.get("finish_reason") is not None:
            self._last = choice
        if not ids:
            return None
        return EngineChunk(ids, are_logprobs([entry["logprob"] for entry in entries]), None, _alternatives(entries))

    def _finish(self, choice: Mapping[str, Any]) -> EngineFinish:
        spans = weight_spans({"weight_versions": self._spans}, self._count)
        told = int(self._usage.get("completion_tokens", self._count))
        fault = "ids_incomplete" if told != self._count else "" if tile(spans, self._count) else MIXED
        details = self._usage.get("prompt_tokens_details") or {}
        return EngineFinish(
            reason=finish_reason(choice["finish_reason"]),
            matched=choice.get("stop_reason"),
            message="" if choice["finish_reason"] in ("stop", "length") else str(choice["finish_reason"]),
            prompt_tokens=int(self._usage.get("prompt_tokens") or len(self._prompt_ids or ())),
            completion_tokens=self._count,
            cached_tokens=int(details.get("cached_tokens") or 0),
            weight_spans=spans,
            prompt_ids=self._prompt_ids,
            fault=fault,
        )


def _alternatives(entries: list[Mapping[str, Any]]) -> list[Alternatives]:
    """The likeliest tokens at each place; vLLM lists the sampled one first, whatever its rank."""
    if not any(entry.get("top_logprobs") for entry in entries):
        return []
    return [
        sorted(((float(t["logprob"]), int(t["token_id"])) for t in entry.get("top_logprobs") or ()), reverse=True)
        for entry in entries
    ]
