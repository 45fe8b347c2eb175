"""An engine that behaves, but for the one call that meets a fault: SGLang's `/generate` with the real tokenizer."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from capture_proxy.engines.modes import PROBE_RID
from capture_proxy.engines.sglang import ROUTING_HEADER
from capture_proxy.rendering.base import Renderer
from compose.trial.policy import tools_of
from schemas import ids
from tests.capture_proxy.fakes import FakeEngine
from tests.faults.faults import FAULTY_CALL, STALL_S, Fault
from tests.faults.task import next_reply

_ARGUMENTS = '"arguments": {'
_TOKEN_S = 0.002
"""Between two tokens: a stream whose end is written together with its middle can't break off in between."""


class FaultEngine(FakeEngine):
    """Knows the session of a call by its routing key, and the call that meets the fault by its id."""

    def __init__(self, renderer: Renderer) -> None:
        super().__init__()
        self.tokenizer = renderer.encode
        self.asked: Counter[str] = Counter()
        """How often each call came here."""
        self._renderer = renderer
        self._faults: dict[str, Fault] = {}
        self._faulty: set[str] = set()

    def inject(self, session_id: str, lease_id: str, fault: Fault) -> None:
        """From now on this session's second call meets the fault."""
        self._faults[session_id] = fault
        self._faulty.add(ids.completion_id(lease_id, 1, FAULTY_CALL))

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = await request.json()
        if "messages" in body:
            tokens = await asyncio.to_thread(self._renderer.render, body["messages"], [], {})
        else:
            tokens = self._renderer.encode(body["prompt"])
        return web.json_response({"tokens": tokens})

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        rid = body["rid"]
        if rid.startswith(PROBE_RID):
            return await self._answer_probe(request, body)
        self.asked[rid] += 1
        fault = self._faults[request.headers[ROUTING_HEADER]]
        tokens, finish = await asyncio.to_thread(self._reply, body["input_ids"], fault, is_faulty=rid in self._faulty)
        if rid in self._faulty:
            if fault.kind == "refuse":
                headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
                return web.json_response({"error": {"message": "not now"}}, status=fault.status, headers=headers)
            if fault.kind == "stall":
                await asyncio.sleep(STALL_S)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for at, token in enumerate(tokens, start=1):
            is_last = at == len(tokens)
            event = _event(body, token, at, finish if is_last else None)
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            await asyncio.sleep(_TOKEN_S)
        if finish is None:
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _reply(
        self, prompt: Sequence[int], fault: Fault, *, is_faulty: bool
    ) -> tuple[list[int], dict[str, Any] | None]:
        """The tokens of the next reply and how it finishes; None: it doesn't."""
        text = self._renderer.decode(prompt)
        reply = next_reply(text, tools_of(text), in_call=fault.in_call)
        end = self._renderer.stop_token_ids[0]
        stop = {"type": "stop", "matched": end}
        if not is_faulty or fault.kind in {"refuse", "stall"}:
            return [*self._renderer.encode(reply), end], stop
        if fault.reply == "empty":
            return [end], stop
        if fault.reply == "malformed":
            return [*self._renderer.encode(reply.replace(_ARGUMENTS, '"arguments": {{')), end], stop
        # Somewhere inside the arguments, or the middle of the text.
        cut = reply.index(_ARGUMENTS) + len(_ARGUMENTS) + 20 if fault.in_call else len(reply) // 2
        tokens = self._renderer.encode(reply[:cut])
        return tokens, {"type": "length", "length": len(tokens)} if fault.reply == "length" else None


def _event(body: dict[str, Any], token: int, at: int, finish: dict[str, Any] | None) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "id": body["rid"],
        "completion_tokens": at,
        "prompt_tokens": len(body["input_ids"]),
        "cached_tokens": 0,
        "weight_version": "v1",
        "finish_reason": finish,
        "output_token_logprobs": [[-0.5, token, None]],
    }
    event: dict[str, Any] = {"text": "", "output_ids": [token], "meta_info": meta}
    if finish is not None:
        meta["weight_versions"] = [{"version": "v1", "start": 0, "end": at}]
        event["prompt_token_ids"] = body["input_ids"]
    return event
