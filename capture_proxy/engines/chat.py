"""The client of chat servers, for engines that take messages (text-in): vLLM's, and any OpenAI-compatible one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import structlog

from capture_proxy.engines.base import ChatPrompt, EngineInfo, GenerateRequest
from capture_proxy.engines.chat_reader import ChatReader, WholeReader
from capture_proxy.engines.chat_tokens import IDS_INCOMPLETE
from capture_proxy.engines.chat_wire import CHAT_PATH, OPENAI_ASKINGS, VLLM_ASKINGS, Asking, request_body, unsent
from capture_proxy.engines.http import CONNECT_TIMEOUT_S, HttpEngine, HttpStream
from capture_proxy.engines.modes import (
    NO_IDS,
    NO_LOGPROBS,
    NO_PROMPT_IDS,
    gaps_of,
    measure_mode,
)
from capture_proxy.engines.sglang import ROUTING_HEADER
from capture_proxy.engines.vllm import SESSION_HEADER, served_model, tokens_of
from capture_proxy.reply import ProxyError

log = structlog.get_logger(__name__)

_PROBE_TOOL = {
    "type": "function",
    "function": {"name": "noop", "description": "Do nothing.", "parameters": {"type": "object", "properties": {}}},
}


class OpenAiChatEngine(HttpEngine):
    """An `Engine` on `/v1/chat/completions`: the server renders and parses. What it tells of tokens is found out by the probe."""

    kind: ClassVar[str] = "openai"
    is_text_in: ClassVar[bool] = True
    askings: ClassVar[tuple[Asking, ...]] = OPENAI_ASKINGS
    knows_extensions: ClassVar[bool] = False

    def __init__(self, url: str, *, api_key: str | None = None) -> None:
        super().__init__(url.rstrip("/").removesuffix("/v1"), api_key=api_key)
        self.asking = self.askings[0]
        self.model = ""

    def generate(self, request: GenerateRequest) -> HttpStream:
        """Starts a generation; see `Engine.generate`."""
        return HttpStream(
            self,
            request,
            path=CHAT_PATH,
            body=request_body(request, self.asking, model=self.model, knows_extensions=self.knows_extensions),
            reader=ChatReader() if self.asking.is_streamed else WholeReader(),
            headers={
                SESSION_HEADER: request.session_id,
                ROUTING_HEADER: request.session_id,
                "x-request-id": request.rid,
            },
        )

    def untold(self, sampling: Mapping[str, Any]) -> list[str]:
        """What plain OpenAI servers have no word for."""
        return [] if self.knows_extensions else unsent(sampling)

    async def probe(self, prompt_ids: Sequence[int], timeout_s: float = CONNECT_TIMEOUT_S) -> EngineInfo:
        """Tries the ways to ask, keeps the one that gives most, and says what is missing."""
        self.model, length = await served_model(self, timeout_s)
        gaps = await self._choose_asking(prompt_ids)
        mode, _ = await measure_mode(self, prompt_ids)
        gaps |= await self._tool_gap(prompt_ids)
        if not self.asking.is_streamed:
            gaps.add("it gives ids in whole answers only, so clients see the text at its end")
        gives_ids = not gaps & {NO_IDS, NO_PROMPT_IDS}
        return EngineInfo(
            kind=self.kind,
            url=self.url,
            model=self.model,
            context_length=length,
            logprobs_mode=mode,
            gaps=tuple(sorted(gaps)),
            gives_ids=gives_ids,
        )

    async def _choose_asking(self, prompt_ids: Sequence[int]) -> set[str]:
        found: list[tuple[int, int, Asking, set[str]]] = []
        refusal: ProxyError | None = None
        for rank, asking in enumerate(self.askings):
            try:
                missing = await self._missing(asking, prompt_ids)
            except ProxyError as error:
                if error.kind in ("overloaded", "engine_unavailable"):
                    raise
                refusal = error
                continue
            needed = missing & {NO_IDS, NO_PROMPT_IDS, NO_LOGPROBS}
            found.append((len(needed), rank, asking, missing))
            if not needed:
                break
        if not found:
            assert refusal is not None
            raise refusal
        _, _, self.asking, gaps = min(found, key=lambda item: item[:2])
        return gaps

    async def _missing(self, asking: Asking, prompt_ids: Sequence[int]) -> set[str]:
        self.asking = asking
        chunks = []
        async with self.generate(_probe_request(prompt_ids, [])) as stream:
            chunks.extend([chunk async for chunk in stream])
        missing = gaps_of(chunks)
        finish = chunks[-1].finish if chunks else None
        if finish is not None and finish.fault == IDS_INCOMPLETE:
            missing.add(NO_IDS)
        return missing

    async def _tool_gap(self, prompt_ids: Sequence[int]) -> set[str]:
        """Whether it takes tools at all: vLLM refuses them unless it was started with a parser."""
        try:
            async with self.generate(_probe_request(prompt_ids, [_PROBE_TOOL])) as stream:
                async for _ in stream:
                    pass
        except ProxyError as error:
            if error.kind in ("overloaded", "engine_unavailable"):
                raise
            return {f"it refuses tools: {error.message}"}
        return set()

    async def tokenize(self, text: str) -> list[int] | None:
        """Nothing: OpenAI's interface has no such question."""
        del text
        return None

    async def render(self, messages: list[dict[str, Any]]) -> list[int] | None:
        """Nothing: OpenAI's interface has no such question."""
        del messages
        return None


class VllmChatEngine(OpenAiChatEngine):
    """vLLM's chat with `return_token_ids`: ids of prompt and output, also in streams, but no weight versions."""

    kind: ClassVar[str] = "vllm_chat"
    askings: ClassVar[tuple[Asking, ...]] = VLLM_ASKINGS
    knows_extensions: ClassVar[bool] = True

    async def tokenize(self, text: str) -> list[int] | None:
        """The engine's own ids of a text without special tokens added."""
        return await tokens_of(self, {"prompt": text, "add_special_tokens": False})

    async def render(self, messages: list[dict[str, Any]]) -> list[int] | None:
        """The engine's own prompt ids of a conversation."""
        return await tokens_of(self, {"messages": messages, "add_generation_prompt": True})


def _probe_request(prompt_ids: Sequence[int], tools: list[dict[str, Any]]) -> GenerateRequest:
    return GenerateRequest(
        rid="probe-chat",
        session_id="probe-",
        input_ids=list(prompt_ids),
        sampling={"temperature": 1.0},
        timeout_s=60.0,
        chat=ChatPrompt(messages=[{"role": "user", "content": "Say something."}], tools=tools, max_tokens=2),
    )
