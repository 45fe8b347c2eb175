"""The bodies that `/generate` answers with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from compose.cpu_engine.protocol import GenerateRequest
from compose.cpu_engine.sequence import Sequence
from compose.cpu_engine.text import GrowingText, Tokenizer, held_back


@dataclass(slots=True)
class ReplyWriter:
    """Turns a sequence's state into response bodies: one at the end, or one per event of a stream."""

    request: GenerateRequest
    sequence: Sequence
    tokenizer: Tokenizer
    is_incremental: bool
    _prompt: orjson.Fragment | None = None
    _growing: GrowingText | None = None
    _ids_sent: int = 0
    _text_sent: int = 0

    def whole(self, version: str) -> bytes:
        """The body of a reply that has ended."""
        return self._body(self._final_text(), 0, version)

    def event(self, count: int, version: str) -> bytes:
        """The next stream event, covering the first `count` output tokens."""
        sequence = self.sequence
        if sequence.is_over and count == len(sequence.output_ids):
            text = self._final_text()
        else:
            if self._growing is None:
                self._growing = GrowingText(
                    self.tokenizer, skip_special_tokens=self.request.sampling_params.skip_special_tokens
                )
            text = self._growing.grow(sequence.output_ids[:count])
            # An end that may become a stop string is not shown: it would have to be taken back.
            text = text[: len(text) - held_back(text, sequence.limits.stop)]
        if self.is_incremental:
            body = self._body(text[self._text_sent :], self._ids_sent, version, count)
            self._text_sent = max(self._text_sent, len(text))
        else:
            body = self._body(text, 0, version, count)
        self._ids_sent = count
        return body

    def _final_text(self) -> str:
        params = self.request.sampling_params
        ids = self.sequence.output_ids
        finish = self.sequence.finish
        matched = finish.matched if finish is not None else None
        if isinstance(matched, int) and not params.no_stop_trim:
            ids = ids[:-1]
        text = self.tokenizer.decode(ids, skip_special_tokens=params.skip_special_tokens) if ids else ""
        if isinstance(matched, str):
            found = text.find(matched)
            if found >= 0:
                text = text[: found + len(matched)] if params.no_stop_trim else text[:found]
        return text

    def _body(self, text: str, start: int, version: str, count: int | None = None) -> bytes:
        sequence = self.sequence
        end = len(sequence.output_ids) if count is None else count
        is_last = sequence.is_over and end == len(sequence.output_ids)
        body: dict[str, Any] = {"text": text, "output_ids": sequence.output_ids[start:end]}
        if self.request.return_prompt_token_ids:
            if self._prompt is None:  # serialised once, however many events repeat it
                self._prompt = orjson.Fragment(orjson.dumps(sequence.prompt_ids))
            body["prompt_token_ids"] = self._prompt
        body["meta_info"] = self._meta(start, end, version, is_last=is_last)
        return orjson.dumps(body)

    def _meta(self, start: int, end: int, version: str, *, is_last: bool) -> dict[str, Any]:
        sequence = self.sequence
        meta: dict[str, Any] = {
            "id": sequence.rid,
            "finish_reason": sequence.finish.to_json() if is_last and sequence.finish is not None else None,
            "prompt_tokens": len(sequence.prompt_ids),
            "weight_version": version,
            "num_retractions": sequence.retractions,
        }
        if self.request.return_logprob:
            ids = sequence.output_ids[start:end]
            texts = [
                self.tokenizer.decode([i], skip_special_tokens=False) if self.request.return_text_in_logprobs else None
                for i in ids
            ]
            meta["input_token_logprobs"] = []
            meta["output_token_logprobs"] = list(zip(sequence.logprobs[start:end], ids, texts, strict=True))
            meta["output_token_logprobs_length"] = end
            if self.sequence.top:
                meta["input_top_logprobs"] = []
                meta["output_top_logprobs"] = [
                    [(logprob, i, None) for logprob, i in top] for top in sequence.tops[start:end]
                ]
        meta.update(reasoning_tokens=0, completion_tokens=end, cached_tokens=sequence.cached_tokens)
        if is_last:
            spans = sequence.spans or [(version, 0, 0)]
            meta["weight_version"] = spans[-1][0]
            meta["weight_versions"] = [{"version": v, "start": a, "end": b} for v, a, b in spans]
            assert sequence.finished_at is not None
            meta["e2e_latency"] = sequence.finished_at - sequence.started_at
        meta["dp_rank"] = None
        return meta
