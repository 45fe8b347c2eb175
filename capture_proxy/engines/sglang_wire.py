"""SGLang's `/generate` as values: the request body, the events of its stream, its errors. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import orjson

from capture_proxy.engines.base import EngineChunk, EngineFinish, EngineFinishReason, GenerateRequest, WeightSpan
from capture_proxy.reply import ErrorKind, ProxyError

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

_MAX_ID = 2**31 - 1
"""Token ids travel as int32."""

_CONTEXT = re.compile(
    r"context[ _]length|context window|maximum (allowed|input) length|longer than the model", re.IGNORECASE
)
"""How SGLang says that a prompt doesn't fit."""


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
        "return_prompt_token_ids": True,
    }
    if request.top_logprobs:
        body["top_logprobs_num"] = request.top_logprobs
    return orjson.dumps(body)


class StreamReader:
    """The chunks of one stream. Events may hold everything so far or only what is new; both kinds are told apart by their counts."""

    __slots__ = ("_count", "_is_cumulative", "_prompt_ids", "_rest", "is_done")

    def __init__(self) -> None:
        self._rest = b""
        self._count = 0
        self._is_cumulative = False
        self._prompt_ids: list[int] | None = None
        self.is_done = False

    def feed(self, data: bytes) -> Iterator[EngineChunk]:
        """The chunks completed by `data`. Raises ProxyError at an error event or an event that doesn't add up, after those before it.

        Of cumulative events that arrived together only the last is parsed: reading them all costs the square of the length.
        """
        *frames, self._rest = (self._rest + data).split(b"\n\n")
        events = [frame[5:].strip() for frame in frames if frame.startswith(b"data:")]
        if events and events[-1] == b"[DONE]":
            self.is_done = True
            events.pop()
        if self._is_cumulative and len(events) > 1:
            events = events[-2:] if events[-1].startswith(b'{"error"') else events[-1:]
        for event in events:
            if (chunk := self._read(event)) is not None:
                yield chunk

    def _read(self, event: bytes) -> EngineChunk | None:
        try:
            value = orjson.loads(event)
        except orjson.JSONDecodeError as error:
            raise ProxyError("engine_error", f"the engine sent something that is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise ProxyError("engine_error", "the engine sent an event that is no object")
        if "error" in value:
            raise error_of(value, None)
        try:
            return self._chunk(value)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise ProxyError("engine_error", f"the engine sent an event of another shape: {error!r}") from error

    def _chunk(self, value: Mapping[str, Any]) -> EngineChunk | None:
        meta: Mapping[str, Any] = value.get("meta_info") or {}
        ids: list[int] = value.get("output_ids") or []
        total = int(meta.get("completion_tokens", self._count + len(ids)))
        ids = self._new_part(ids, total, "ids")
        if not all(type(token_id) is int and 0 <= token_id <= _MAX_ID for token_id in ids):
            raise ProxyError("engine_error", "the engine sent output ids that are no token ids")
        triples = self._new_part(meta.get("output_token_logprobs") or [], total, "logprobs")
        if triples and any(triple[1] != token_id for triple, token_id in zip(triples, ids, strict=True)):
            raise ProxyError("engine_error", "the engine's logprobs belong to other token ids than its output")
        top = self._new_part(meta.get("output_top_logprobs") or [], total, "logprobs")
        self._count = total
        if value.get("prompt_token_ids"):
            self._prompt_ids = value["prompt_token_ids"]
        reason = meta.get("finish_reason")
        if reason is None and not ids:
            return None
        finish = self._finish(reason, meta) if reason is not None else None
        logprobs = [triple[0] for triple in triples]
        if not all(value is None or isinstance(value, int | float) for value in logprobs):
            raise ProxyError("engine_error", "the engine sent logprobs that are no numbers")
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
            weight_spans=weight_spans(meta, self._count),
            prompt_ids=self._prompt_ids,
        )


def weight_spans(meta: Mapping[str, Any], count: int) -> tuple[WeightSpan, ...]:
    """The weight versions of an output of `count` tokens; an engine without spans has one version for all."""
    spans = meta.get("weight_versions")
    if spans:
        return tuple(WeightSpan(str(span["version"]), int(span["start"]), int(span["end"])) for span in spans)
    version = meta.get("weight_version")
    return (WeightSpan(str(version), 0, count),) if version is not None else ()


def error_of(body: Any, status: int | None, retry_after: str | None = None) -> ProxyError:
    """An engine's error as ours. `body` in any of SGLang's shapes; `status` None: an event in a stream, which names its own."""
    inner = body.get("error", body) if isinstance(body, Mapping) else body
    message = str(inner.get("message") or inner) if isinstance(inner, Mapping) else str(inner)
    if status is None:
        code = inner.get("code") if isinstance(inner, Mapping) else None
        status = code if isinstance(code, int) else 500
    kind: ErrorKind
    match status:
        case 400 | 413 | 422:
            kind = "context_overflow" if _CONTEXT.search(message) else "bad_request"
        case 429:
            kind = "overloaded"
        case 502 | 503 | 504:
            kind = "engine_unavailable"
        case _:
            kind = "engine_error"
    return ProxyError(kind, f"the engine answered {status}: {message[:500]}", retry_after_s=retry_after_s(retry_after))


def retry_after_s(header: str | None, *, now: datetime | None = None) -> float | None:
    """Seconds of a `Retry-After` header, given as a number or as an HTTP date; None where it says nothing."""
    if header is None:
        return None
    try:
        return max(0.0, float(header))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(header) - (now or datetime.now(UTC))).total_seconds())
    except ValueError:
        return None
