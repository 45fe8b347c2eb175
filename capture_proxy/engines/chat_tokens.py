"""What a chat answer tells about its tokens, collected from wherever a server puts it, and judged at the end. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from capture_proxy.engines.base import EngineCall, EngineChunk, EngineFinish, EngineReply
from capture_proxy.engines.spans import MIXED, tile, weight_spans
from capture_proxy.engines.values import are_logprobs, checked_ids, finish_reason

IDS_INCOMPLETE: Final = "ids_incomplete"
"""The server counted other tokens than it gave ids for: some were swallowed by its parsers."""

_ID_TOKEN: Final = "token_id:"  # noqa: S105 - how vLLM writes an id in a logprob's token


class TokenEvidence:
    """Text, calls, ids and logprobs of one answer (its first choice) as they come.

    Ids come as `token_ids` (vLLM), `response_token_ids` and `meta_info` (SGLang, whole answers), `sglext` (SGLang, by header), or inside
    the logprobs. They are shown as they come where the events carry them; otherwise they are on the last chunk.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._matched: int | str | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, list[str]] = {}
        self._ids: list[int] = []
        self._late_ids: list[int] = []
        self._prompt_ids: list[int] | None = None
        self._entries: list[Mapping[str, Any]] = []
        self._meta: Mapping[str, Any] = {}
        self._usage: Mapping[str, Any] = {}

    def take(self, value: Mapping[str, Any], key: str) -> EngineChunk | None:
        """Notes one event (`key` is `delta`) or the whole answer (`message`); what of it may be shown, if anything."""
        self._usage = value.get("usage") or self._usage
        self._note_prompt(value.get("prompt_token_ids"))
        extension = value.get("sglext") or {}
        self._note_prompt(extension.get("input_ids"))
        if extension.get("output_ids"):
            self._late_ids = checked_ids(extension["output_ids"][0])
        self._meta = value.get("metadata") or self._meta
        choice = next((c for c in value.get("choices") or () if c.get("index", 0) == 0), None)
        if choice is None:
            return None
        new_ids = self._note_choice(choice)
        message = choice.get(key) or {}
        text = message.get("content") or ""
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        self._text.append(text)
        self._reasoning.append(reasoning)
        for at, call in enumerate(message.get("tool_calls") or ()):
            self._note_call(at if key == "message" else call.get("index", at), call.get("function") or {})
        if not (text or reasoning or new_ids):
            return None
        return EngineChunk(new_ids, [], None, [], text, reasoning, self._prompt_ids)

    def _note_choice(self, choice: Mapping[str, Any]) -> list[int]:
        self._note_prompt(choice.get("prompt_token_ids"))
        if choice.get("finish_reason") is not None:
            self.reason = str(choice["finish_reason"])
            matched = choice.get("stop_reason", choice.get("matched_stop"))
            self._matched = matched if isinstance(matched, int | str) else None
        self._entries += (choice.get("logprobs") or {}).get("content") or []
        self._meta = choice.get("meta_info") or self._meta
        if choice.get("response_token_ids"):
            self._late_ids = checked_ids(choice["response_token_ids"])
        new_ids = checked_ids(choice.get("token_ids") or [])
        self._ids += new_ids
        return new_ids

    def _note_prompt(self, ids: Any) -> None:
        if ids:  # an empty prompt is none
            self._prompt_ids = checked_ids(ids)

    def _note_call(self, index: int, function: Mapping[str, Any]) -> None:
        call = self._calls.setdefault(index, ["", ""])
        call[0] += function.get("name") or ""
        arguments = function.get("arguments")
        call[1] += (
            arguments if isinstance(arguments, str) else "" if arguments is None else orjson.dumps(arguments).decode()
        )

    def last_chunk(self) -> EngineChunk:
        """The rest: ids that came late, all logprobs, and the finish with its verdict."""
        triples: Sequence[Sequence[Any]] = self._meta.get("output_token_logprobs") or ()
        ids = self._ids or self._late_ids or checked_ids([t[1] for t in triples]) or _ids_in(self._entries)
        logprobs = _best_logprobs(ids, triples, self._entries)
        told = self._usage.get("completion_tokens")
        spans = weight_spans(self._meta, len(ids))
        is_short = bool(ids) and isinstance(told, int) and told != len(ids)
        fault = IDS_INCOMPLETE if is_short else "" if tile(spans, len(ids)) or not ids else MIXED
        finish = self._finish(spans if ids else (), fault, len(ids))
        return EngineChunk([] if self._ids else ids, logprobs, finish, prompt_ids=self._prompt_ids)

    def _finish(self, spans: Any, fault: str, count: int) -> EngineFinish:
        assert self.reason is not None
        details = self._usage.get("prompt_tokens_details") or {}
        thought = self._usage.get("completion_tokens_details") or {}
        reply = EngineReply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(
                EngineCall(name, arguments or "{}") for _, (name, arguments) in sorted(self._calls.items())
            ),
            reasoning_tokens=int(thought.get("reasoning_tokens") or self._usage.get("reasoning_tokens") or 0),
        )
        return EngineFinish(
            reason=finish_reason(self.reason),
            matched=self._matched,
            message="" if self.reason in ("stop", "length", "tool_calls") else self.reason,
            prompt_tokens=int(self._usage.get("prompt_tokens") or len(self._prompt_ids or ())),
            completion_tokens=int(self._usage.get("completion_tokens") or count),
            cached_tokens=int(details.get("cached_tokens") or 0),
            weight_spans=spans,
            prompt_ids=self._prompt_ids,
            fault=fault,
            reply=reply,
        )


def _ids_in(entries: Sequence[Mapping[str, Any]]) -> list[int]:
    """The ids that logprob entries name, if every one does."""
    ids: list[int] = []
    for entry in entries:
        token = entry.get("token")
        if isinstance(entry.get("token_id"), int):
            ids.append(entry["token_id"])
        elif isinstance(token, str) and token.startswith(_ID_TOKEN) and token[len(_ID_TOKEN) :].isdigit():
            ids.append(int(token[len(_ID_TOKEN) :]))
        else:
            return []
    return checked_ids(ids)


def _best_logprobs(
    ids: Sequence[int], triples: Sequence[Sequence[Any]], entries: Sequence[Mapping[str, Any]]
) -> list[Any]:
    """Of the lists that an answer has, the one with as many entries as there are ids; else the longest, to be judged as it is."""
    lists = [[t[0] for t in triples], [entry.get("logprob") for entry in entries]]
    fitting = [values for values in lists if len(values) == len(ids)]
    return are_logprobs(fitting[0] if fitting and ids else max(lists, key=len))
