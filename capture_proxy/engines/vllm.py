"""The client of vLLM's `/inference/v1/generate`: token-in, with weight-version spans. Needs `--enable-scale-out`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from capture_proxy.engines.base import EngineInfo, GenerateRequest
from capture_proxy.engines.http import CONNECT_TIMEOUT_S, HttpEngine, HttpStream
from capture_proxy.engines.modes import NO_IDS, measure_mode
from capture_proxy.engines.vllm_wire import GENERATE_PATH, ID_PREFIX, KNOWN, VllmReader, request_body

SESSION_HEADER = "x-session-id"
"""vLLM's routers choose a replica by it, and the engine schedules by it."""


class VllmEngine(HttpEngine):
    """An `Engine` on vLLM's token interface."""

    kind: ClassVar[str] = "vllm"

    def generate(self, request: GenerateRequest) -> HttpStream:
        """Starts a generation; see `Engine.generate`."""
        return HttpStream(
            self,
            request,
            path=GENERATE_PATH,
            body=request_body(request),
            reader=VllmReader(),
            headers={SESSION_HEADER: request.session_id},
        )

    def untold(self, sampling: Mapping[str, Any]) -> list[str]:
        """What vLLM's sampling has no word for."""
        return sorted(name for name, value in sampling.items() if value is not None and name not in KNOWN)

    async def probe(self, prompt_ids: Sequence[int], timeout_s: float = CONNECT_TIMEOUT_S) -> EngineInfo:
        """What it says of itself, and of which distribution its logprobs are."""
        model, length = await served_model(self, timeout_s)
        mode, gaps = await measure_mode(self, prompt_ids)
        if NO_IDS in gaps:
            gaps = (*gaps, f"{GENERATE_PATH} needs vLLM's option --enable-scale-out (or use the kind vllm_chat)")
        return EngineInfo(
            kind=self.kind,
            url=self.url,
            model=model,
            context_length=length,
            logprobs_mode=mode,
            gaps=gaps,
            gives_ids=NO_IDS not in gaps,
        )

    async def tokenize(self, text: str) -> list[int] | None:
        """The engine's own ids of a text without special tokens added."""
        return await tokens_of(self, {"prompt": text, "add_special_tokens": False})

    async def render(self, messages: list[dict[str, Any]]) -> list[int] | None:
        """The engine's own prompt ids of a conversation."""
        return await tokens_of(self, {"messages": messages, "add_generation_prompt": True})

    async def abort(self, rid: str) -> None:
        """Asks the engine to stop a request; never raises."""
        if rid:
            await self.tell("/inference/v1/abort_requests", {"request_ids": [ID_PREFIX + rid]})


async def served_model(engine: HttpEngine, timeout_s: float) -> tuple[str, int | None]:
    """The name and the context length of the first model that `/v1/models` lists. Raises ProxyError."""
    entries = (await engine.get("/v1/models", timeout_s)).get("data") or [{}]
    length = entries[0].get("max_model_len")
    return str(entries[0].get("id") or ""), int(length) if length else None


async def tokens_of(engine: HttpEngine, body: dict[str, Any]) -> list[int] | None:
    """What vLLM's `/tokenize` says. Raises ProxyError."""
    tokens = (await engine.post("/tokenize", body, CONNECT_TIMEOUT_S)).get("tokens")
    return tokens if isinstance(tokens, list) else None
