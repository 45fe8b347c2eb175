"""The client of SGLang's native interface, which our CPU engine speaks too: token-in, with weight-version spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from capture_proxy.engines.base import EngineInfo, GenerateRequest
from capture_proxy.engines.http import CONNECT_TIMEOUT_S, HttpEngine, HttpStream
from capture_proxy.engines.modes import NO_IDS, measure_mode
from capture_proxy.engines.sglang_wire import KNOWN, StreamReader, request_body
from capture_proxy.reply import ProxyError

ROUTING_HEADER = "x-smg-routing-key"
"""What SGLang's routers choose a worker by; the engine itself takes it for scheduling."""


class SglangEngine(HttpEngine):
    """An `Engine` on `/generate`. One key per session keeps a session where its prefix is cached."""

    kind: ClassVar[str] = "sglang"

    def generate(self, request: GenerateRequest) -> HttpStream:
        """Starts a generation; see `Engine.generate`."""
        return HttpStream(
            self,
            request,
            path="/generate",
            body=request_body(request),
            reader=StreamReader(),
            headers={ROUTING_HEADER: request.session_id},
        )

    def untold(self, sampling: Mapping[str, Any]) -> list[str]:
        """What `/generate` has no word for."""
        return sorted(name for name, value in sampling.items() if value is not None and name not in KNOWN)

    async def probe(self, prompt_ids: Sequence[int], timeout_s: float = CONNECT_TIMEOUT_S) -> EngineInfo:
        """What it says of itself, and of which distribution its logprobs are (two sampled tokens tell)."""
        info = await self.get("/model_info", timeout_s)
        models = await self.get("/v1/models", timeout_s)
        entries = models.get("data") or [{}]
        length = entries[0].get("max_model_len")
        mode, gaps = await measure_mode(self, prompt_ids)
        if not info.get("is_generation", True):
            gaps = ("the model does not generate", *gaps)
        return EngineInfo(
            kind=self.kind,
            url=self.url,
            model=str(info.get("served_model_name") or entries[0].get("id") or info.get("model_path") or ""),
            weight_version=str(info.get("weight_version", "")),
            context_length=int(length) if length else None,
            logprobs_mode=mode,
            gaps=gaps,
            gives_ids=NO_IDS not in gaps,
        )

    async def tokenize(self, text: str) -> list[int] | None:
        """The engine's own ids of a text without special tokens added."""
        return await self._tokens({"prompt": text, "add_special_tokens": False})

    async def render(self, messages: list[dict[str, Any]]) -> list[int] | None:
        """The engine's own prompt ids of a conversation."""
        return await self._tokens({"messages": messages, "add_generation_prompt": True})

    async def _tokens(self, body: dict[str, Any]) -> list[int] | None:
        try:
            tokens = (await self.post("/v1/tokenize", {"model": "any", **body}, CONNECT_TIMEOUT_S)).get("tokens")
        except ProxyError as error:
            if "answered 404" in error.message or "answered 405" in error.message:  # before 0.5
                return None
            raise
        return tokens if isinstance(tokens, list) else None

    async def abort(self, rid: str) -> None:
        """Asks the engine to stop a request; never raises."""
        if rid:  # an empty id would match every request
            await self.tell("/abort_request", {"rid": rid})
