"""Anthropic's SDK: Messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import anthropic
from pydantic import BaseModel

from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.sdk.driver import MODEL, PARAMETERS, Answer, Call, Driver


class MessagesDriver(Driver):
    """`client.messages`."""

    name = "anthropic"
    dialect = "anthropic"
    ends: ClassVar[dict[str, str]] = {"stop": "end_turn", "length": "max_tokens", "tools": "tool_use"}
    errors: ClassVar[dict[int, type[Exception]]] = {
        400: anthropic.BadRequestError,
        401: anthropic.AuthenticationError,
        404: anthropic.NotFoundError,
        409: anthropic.ConflictError,
        413: anthropic.APIStatusError,
        429: anthropic.RateLimitError,
        500: anthropic.InternalServerError,
        529: anthropic.OverloadedError,
    }
    overloaded_status = 529
    stream_error = anthropic.APIStatusError

    def client(self, stack: Stack, *, retries: int = 0, secret: str | None = None) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(
            base_url=stack.proxy.data_address, api_key=secret or stack.secret, max_retries=retries, timeout=20.0
        )

    def user(self, text: str, *, image: str | None = None) -> list[Any]:
        blocks: list[Any] = [{"type": "text", "text": text}]
        if image is not None:
            source = {"type": "base64", "media_type": "image/png", "data": image}
            blocks.insert(0, {"type": "image", "source": source})
        return [{"role": "user", "content": blocks}]

    def said(self, answer: Answer) -> list[Any]:
        return [{"role": "assistant", "content": answer.raw.content}]

    def results(self, answer: Answer, texts: Sequence[str]) -> list[Any]:
        blocks = [
            {"type": "tool_result", "tool_use_id": call.id, "content": text}
            for call, text in zip(answer.calls, texts, strict=True)
        ]
        return [{"role": "user", "content": blocks}]

    async def ask(
        self,
        client: anthropic.AsyncAnthropic,
        turns: list[Any],
        *,
        stream: bool,
        tools: bool = False,
        schema: type[BaseModel] | None = None,
        limit: int | None = None,
    ) -> Answer:
        options: dict[str, Any] = {"model": MODEL, "messages": turns, "max_tokens": limit or 1000}
        if tools:
            options["tools"] = [{"name": "ls", "description": "Lists.", "input_schema": PARAMETERS}]
        if schema is not None:
            options["output_format"] = schema
        events: list[str] = []
        done: Any
        if stream:
            async with client.messages.stream(**options) as reader:
                events = [event.type async for event in reader]
                done = await reader.get_final_message()
        elif schema is not None:
            done = await client.messages.parse(**options)
        else:
            done = await client.messages.create(**options)
        return Answer(
            text="".join(block.text for block in done.content if block.type == "text"),
            reasoning="".join(block.thinking for block in done.content if block.type == "thinking"),
            calls=[Call(b.id, b.name, b.input) for b in done.content if b.type == "tool_use"],
            finish=done.stop_reason,
            prompt_tokens=done.usage.input_tokens + (done.usage.cache_read_input_tokens or 0),
            output_tokens=done.usage.output_tokens,
            raw=done,
            parsed=getattr(done, "parsed_output", None),
            events=events,
        )

    async def count(self, client: anthropic.AsyncAnthropic, turns: list[Any]) -> int | None:
        return (await client.messages.count_tokens(model=MODEL, messages=turns)).input_tokens

    async def models(self, client: anthropic.AsyncAnthropic) -> list[str]:
        return [model.id async for model in client.models.list()]

    async def missing(self, client: anthropic.AsyncAnthropic) -> Any:
        return await client.post("/v1/nowhere", cast_to=object, body={})
