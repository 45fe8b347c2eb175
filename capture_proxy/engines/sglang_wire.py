"""SGLang's `/generate` as values: the request body, the events of its stream, its errors. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from capture_proxy.engines.base import EngineChunk, EngineFinish, EngineFinishReason, GenerateRequest
from capture_proxy.engines.errors import error_of
from capture_proxy.engines.spans import MIXED, tile, weight_spans
from capture_proxy.engines.sse import DONE, EventSplitter, parse_event
from capture_proxy.engines.values import are_logprobs, checked_ids
from capture_proxy.reply import ProxyError
from capture_proxy.token_ids import dump_json

_NAMES = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}
"""Our names of sampling parameters → SGLang's, where they differ."""

_PASSED = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "stop",
        "stop_token_ids",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "json_schema",
        "ignore_eos",
        "min_new_tokens",
        "regex",
        "ebnf",
        "structural_tag",
        "custom_params",
        "required_prefix_token_ids",
    }
)


KNOWN = _PASSED | _NAMES.keys()
"""Sampling parameters that arrive."""


ECHO_IDS = 4096
"""Up to this length the engine is asked to repeat the prompt's ids, above it only their number is compared: the engine repeats them in
every event of the stream, which for a prompt of 60,000 ids is 350 kB of JSON per sampled token."""


def request_body(request: GenerateRequest) -> bytes:
    """The body of `POST /generate`: token-in, streamed, with logprobs of the output and an echo of the prompt ids."""
    sampling: dict[str, Any] = {"skip_special_tokens": False}
    for name, value in request.sampling.items():
        if value is None:
            continue
        if name == "top_k" and value < 1:
            value = -1  # noqa: PLW2901 - off, in SGLang's words
        if name in _NAMES or name in _PASSED:
            sampling[_NAMES.get(name, name)] = value
    body: dict[str, Any] = {
        "rid": request.rid,
        "input_ids": request.input_ids,
        "sampling_params": sampling,
        "stream": True,
        "return_logprob": True,
        "return_prompt_token_ids": len(request.input_ids) <= ECHO_IDS,
    }
    if request.top_logprobs:
        body["top_logprobs_num"] = request.top_logprobs
    return dump_json(body)


class StreamReader:
    """The chunks of one stream. Events may hold everything so far or only what is new; both kinds are told apart by their counts."""

    __slots__ = ("_count", "_first_version", "_is_cumulative", "_prompt_ids", "_splitter", "is_done")

    def __init__(self) -> None:
        self._splitter = EventSplitter()
        self._count = 0
        self._is_cumulative = False
        self._prompt_ids: list[int] | None = None
        self._first_version: str | None = None
        self.is_done = False

    def feed(self, data: bytes) -> Iterator[EngineChunk]:
        """The chunks completed by `data`. Raises ProxyError at an error event or an event that doesn't add up, after those before it.

        Of cumulative events that arrived together only the last is parsed: reading them all costs the square of the length.
        """
        events = self._splitter.feed(data)
        if events and events[-1] == DONE:
            self.is_done = True
            events.pop()
        if self._is_cumulative and len(events) > 1:
            events = events[-2:] if events[-1].startswith(b'{"error"') else events[-1:]
        for event in events:
            value = parse_event(event)
            if "error" in value:
                raise error_of(value, None)
            if (chunk := self._read(value)) is not None:
                yield chunk

    def end(self) -> Iterator[EngineChunk]:
        """Nothing: the finish stands in an event of its own."""
        return iter(())

    def _read(self, value: dict[str, Any]) -> EngineChunk | None:
        try:
            return self._chunk(value)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise ProxyError("engine_error", f"the engine sent an event of another shape: {error!r}") from error

    def _chunk(self, value: Mapping[str, Any]) -> EngineChunk | None:
        meta: Mapping[str, Any] = value.get("meta_info") or {}
        ids: list[int] = value.get("output_ids") or []
        total = int(meta.get("completion_tokens", self._count + len(ids)))
        ids = checked_ids(self._new_part(ids, total, "ids"))
        triples = self._new_part(meta.get("output_token_logprobs") or [], total, "logprobs")
        if triples and any(triple[1] != token_id for triple, token_id in zip(triples, ids, strict=True)):
            raise ProxyError("engine_error", "the engine's logprobs belong to other token ids than its output")
        top = self._new_part(meta.get("output_top_logprobs") or [], total, "logprobs")
        self._count = total
        if value.get("prompt_token_ids"):
            self._prompt_ids = value["prompt_token_ids"]
        if self._first_version is None and ids and meta.get("weight_version") is not None:
            self._first_version = str(meta["weight_version"])
        reason = meta.get("finish_reason")
        if reason is None and not ids:
            return None
        finish = self._finish(reason, meta) if reason is not None else None
        logprobs = are_logprobs([triple[0] for triple in triples])
        return EngineChunk(ids, logprobs, finish, [[(float(t[0]), int(t[1])) for t in place or ()] for place in top])

    def _new_part(self, items: list[Any], total: int, what: str) -> list[Any]:
        """What of an event's list is new; an absent list (an engine without logprobs) stays empty."""
        new = total - self._count
        if len(items) == new:
            return items
        if len(items) == total:
            self._is_cumulative = True
            return items[self._count :]
        if not items and what == "logprobs":
            return []
        raise ProxyError("engine_error", f"the engine sent {len(items)} {what} where {new} or {total} were due")

    def _finish(self, reason: Mapping[str, Any], meta: Mapping[str, Any]) -> EngineFinish:
        kind = str(reason.get("type"))
        status = reason.get("status_code")
        if kind == "abort" and isinstance(status, int) and status >= 400:
            raise error_of({"message": reason.get("message")}, status)
        finish_reason: EngineFinishReason = "length" if kind == "length" else "abort" if kind == "abort" else "stop"
        return EngineFinish(
            reason=finish_reason,
            matched=reason.get("matched"),
            message=str(reason.get("message") or ""),
            prompt_tokens=int(meta.get("prompt_tokens") or 0),
            completion_tokens=self._count,
            cached_tokens=int(meta.get("cached_tokens") or 0),
            prompt_ids=self._prompt_ids,
            **self._versions(meta),
        )

    def _versions(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        """The spans of weight versions; without any, an engine that began with one version and ends with another mixed them."""
        spans = weight_spans(meta, self._count)
        is_mixed = not meta.get("weight_versions") and self._first_version not in (
            None,
            *(span.version for span in spans),
        )
        return {
            "weight_spans": () if is_mixed else spans,
            "fault": MIXED if is_mixed or not tile(spans, self._count) else "",
        }
