"""Render: messages become the prompt's ids, off the loop; token counts are answered here."""

from __future__ import annotations

import asyncio
from typing import Any

from mitmproxy import http

from capture_proxy.call import Prompt
from capture_proxy.engine_pool import EnginePool
from capture_proxy.exchange import Exchange, RequestStep, answer
from capture_proxy.leases import Lease
from capture_proxy.lineage.continuing import made_whole, with_thinking_apart
from capture_proxy.lineage.index import Lineage
from capture_proxy.lineage.nodes import head_of
from capture_proxy.lineage.placing import place
from capture_proxy.recorder import LARGE_BYTES, Recorder
from capture_proxy.rendering.base import Renderer
from capture_proxy.reply import ChatRequest
from capture_proxy.sampling import effective_sampling


class Render(RequestStep):
    """Sets `prompt`: the parent's own tokens and what is new, where the request goes on from an earlier call."""

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
        """Renders now, or leaves it to the tap, which can show signs of life while the lease's earlier calls are read back."""
        request, lease, route = exchange.request, exchange.lease, exchange.route
        assert request is not None
        assert lease is not None
        assert route is not None
        if route.operation == "count_tokens":
            if request.continues or request.recalls:
                request = made_whole(request, await self.recorder.lineages.ready(lease))
            ids = await asyncio.to_thread(
                self._renderer.render, request.messages, request.tools, request.template_kwargs
            )
            answer(flow, 200, {"content-type": "application/json"}, exchange.dialect.encode_count(len(ids)))
            return
        is_large = len(exchange.body) >= LARGE_BYTES
        if self.recorder.lineages.is_ready(lease):
            exchange.prompt = await self._prepare(lease, request, is_large)
            exchange.request = exchange.prompt.request
            return
        exchange.prompt = Prompt(
            renderer=self._renderer,
            ids=[],
            sampling=request.sampling,
            policy_id=self._engines.policy_of(request.model, lease.spec.policy_id),
            later=lambda: self._prepare(lease, request, is_large),
        )

    async def _prepare(self, lease: Lease, request: ChatRequest, is_large: bool) -> Prompt:
        """Renders in a thread: tokenising a long prompt takes tens of milliseconds, in which other calls go on."""
        lineage = await self.recorder.lineages.ready(lease)
        request = with_thinking_apart(made_whole(request, lineage), lineage)
        policy_id = self._engines.policy_of(request.model, lease.spec.policy_id)
        if policy_id != lease.spec.policy_id:
            lineage = Lineage(policy_id)  # what another policy is asked stands alone
        followed = await asyncio.to_thread(lineage.follow, request.messages) if is_large else None
        head = head_of(lineage.digest_tools(request.tools), request.template_kwargs)
        found = lineage.find(request.messages, head, request.turn_ids, followed)
        try:
            ids, placed = await asyncio.to_thread(place, found, request, self._renderer, history=lease.spec.history)
            sampling, notes = effective_sampling(
                request.sampling,
                lease.spec.sampling or {},
                self._sampling_defaults,
                prompt_tokens=len(ids),
                context_length=await self._engines.context_length(policy_id, lease.session_id),
                default_max_tokens=self._default_max_tokens,
                stop_token_ids=self._renderer.stop_token_ids,
                response_format=request.response_format,
            )
        except BaseException:  # whatever it was, nothing goes on from the parent
            lineage.release(found.parent_id)
            raise
        if placed.parent is None:
            lineage.release(found.parent_id)
        return Prompt(
            renderer=self._renderer,
            ids=ids,
            sampling=sampling,
            policy_id=policy_id,
            notes=notes,
            request=request,
            placed=placed,
            lineage=lineage,
        )
