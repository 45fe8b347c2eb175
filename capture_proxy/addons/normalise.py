"""Normalise: the dialect's request becomes OpenAI Chat messages, tools and sampling; model lists are answered here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mitmproxy import http

from capture_proxy.dialects import ModelEntry
from capture_proxy.engine_pool import EnginePool
from capture_proxy.exchange import Exchange, RequestStep, answer
from capture_proxy.recorder import Recorder
from capture_proxy.reply import ChatRequest

_LARGE_BYTES: Final = 1 << 16  # parsed in a millisecond; a thread costs a tenth of that


class Normalise(RequestStep):
    """Sets `request`."""

    def __init__(self, recorder: Recorder, engines: EnginePool, *, model_names: Sequence[str]) -> None:
        super().__init__(recorder)
        self._engines = engines
        self._model_names = tuple(model_names)

    async def step(self, flow: http.HTTPFlow, exchange: Exchange) -> None:
        """Parses the body, or lists the models."""
        route, lease = exchange.route, exchange.lease
        assert route is not None
        assert lease is not None
        headers = dict(flow.request.headers)
        if route.operation == "list_models":
            context = await self._engines.context_length(lease.spec.policy_id, lease.session_id)
            if route.model:
                body = exchange.dialect.encode_model(ModelEntry(route.model, context, lease.opened_at))
            else:
                body = exchange.dialect.encode_models(
                    [ModelEntry(name, context, lease.opened_at) for name in self._model_names]
                )
            answer(flow, 200, {"content-type": "application/json"}, body)
        elif route.operation == "count_tokens":
            exchange.request = await _parse(exchange.dialect.parse_count, route.path, headers, exchange.body)
        else:
            exchange.request = await _parse(exchange.dialect.parse_request, route.path, headers, exchange.body)


async def _parse(
    parse: Callable[[str, Mapping[str, str], bytes], ChatRequest], path: str, headers: dict[str, str], body: bytes
) -> ChatRequest:
    """Parses here, or a large body in a thread: other calls' tokens and keep-alives go on meanwhile."""
    if len(body) < _LARGE_BYTES:
        return parse(path, headers, body)
    return await asyncio.to_thread(parse, path, headers, body)
