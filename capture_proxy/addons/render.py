"""Render: messages become the prompt's ids, off the loop; token counts are answered here."""

from __future__ import annotations

import asyncio
from typing import Any

from mitmproxy import http

from capture_proxy.call import Prompt
from capture_proxy.engine_pool import EnginePool
from capture_proxy.exchange import Exchange, RequestStep, answer
from capture_proxy.recorder import Recorder
from capture_proxy.rendering.base import Renderer
from capture_proxy.sampling import effective_sampling


class Render(RequestStep):
    """Sets `prompt`."""

    def __init__(
        self,
        recorder: Recorder,
        engines: EnginePool,
        renderer: Renderer,
        *,
        sampling_defaults: dict[str, Any],
        default_max_tokens: int,
    ) -> None:
        super().__init__(recorder)
        self._engines = engines
        self._renderer = renderer
        self._sampling_defaults = sampling_defaults
        self._default_max_tokens = default_max_tokens

    async def step(self, flow: http.HTTPFlow, exchange: Exchange) -> None:
        """Renders in a thread: tokenising a long prompt takes tens of milliseconds, in which other calls go on."""
        request, lease, route = exchange.request, exchange.lease, exchange.route
        assert request is not None
        assert lease is not None
        assert route is not None
        prompt_ids = await asyncio.to_thread(
            self._renderer.render, request.messages, request.tools, request.template_kwargs
        )
        if route.operation == "count_tokens":
            answer(flow, 200, {"content-type": "application/json"}, exchange.dialect.encode_count(len(prompt_ids)))
            return
        sampling, notes = effective_sampling(
            request.sampling,
            lease.spec.sampling or {},
            self._sampling_defaults,
            prompt_tokens=len(prompt_ids),
            context_length=await self._engines.context_length(lease.spec.policy_id, lease.session_id),
            default_max_tokens=self._default_max_tokens,
            stop_token_ids=self._renderer.stop_token_ids,
            response_format=request.response_format,
        )
        exchange.prompt = Prompt(renderer=self._renderer, ids=prompt_ids, sampling=sampling, notes=notes)
