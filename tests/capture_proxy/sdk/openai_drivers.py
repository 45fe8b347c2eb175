"""OpenAI's SDK: Chat Completions and Responses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import openai
from pydantic import BaseModel

from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.sdk.driver import MODEL, PARAMETERS, PNG, Answer, Call, Driver

_ERRORS: dict[int, type[Exception]] = {
    400: openai.BadRequestError,
    401: openai.AuthenticationError,
    404: openai.NotFoundError,
    409: openai.ConflictError,
    413: openai.APIStatusError,
    429: openai.RateLimitError,
    500: openai.InternalServerError,
    503: openai.InternalServerError,
}


class _OpenAi(Driver):
    errors = _ERRORS
    stream_error = openai.APIError

    def client(self, stack: Stack, *, retries: int = 0, secret: str | None = None) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=f"{stack.proxy.data_address}/v1",
            api_key=secret or stack.secret,
            max_retries=retries,
            timeout=20.0,
        )

    async def models(self, client: openai.AsyncOpenAI) -> list[str]:
        return [model.id async for model in client.models.list()]

    async def missing(self, client: openai.AsyncOpenAI) -> Any:
        return await client.post("/nowhere", cast_to=object, body={})


class ChatDriver(_OpenAi):
    """`client.chat.completions`."""

    name = "openai-chat"
    dialect = "openai_chat"
    ends: ClassVar[dict[str, str]] = {"stop": "stop", "length": "length", "tools": "tool_calls"}

    def user(self, text: str, *, image: str | None = None) -> list[Any]:
        if image is None:
            return [{"role": "user", "content": text}]
        url = f"data:image/png;base64,{image}"
        return [
            {
                "role": "user",
                "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": text}],
            }
        ]

    def said(self, answer: Answer) -> list[Any]:
        return [answer.raw.choices[0].message.model_dump(exclude_unset=True)]

    def results(self, answer: Answer, texts: Sequence[str]) -> list[Any]:
        return [
            {"role": "tool", "tool_call_id": call.id, "content": text}
            for call, text in zip(answer.calls, texts, strict=True)
        ]

    async def ask(
        self,
        client: openai.AsyncOpenAI,
        turns: list[Any],
        *,
        stream: bool,
        tools: bool = False,
        schema: type[BaseModel] | None = None,
        limit: int | None = None,
    ) -> Answer:
        options: dict[str, Any] = {"model": MODEL, "messages": turns}
        if limit is not None:
            options["max_completion_tokens"] = limit
        if tools:
            function = {"name": "ls", "description": "Lists.", "parameters": PARAMETERS, "strict": True}
            options["tools"] = [{"type": "function", "function": function}]
        if schema is not None:
            options["response_format"] = schema
        events: list[str] = []
        if stream:
            async with client.chat.completions.stream(**options, stream_options={"include_usage": True}) as reader:
                try:
                    events = [event.type async for event in reader]
                    done: Any = await reader.get_final_completion()
                except openai.LengthFinishReasonError as cut:  # the SDK's way to say `length`
                    done = cut.completion
        elif schema is not None:
            done = await client.chat.completions.parse(**options)
        else:
            done = await client.chat.completions.create(**options)
        choice = done.choices[0]
        return Answer(
            text=choice.message.content or "",
            reasoning=getattr(choice.message, "reasoning_content", None) or "",
            calls=[
                Call(call.id, call.function.name, json.loads(call.function.arguments))
                for call in choice.message.tool_calls or []
            ],
            finish=choice.finish_reason,
            prompt_tokens=done.usage.prompt_tokens if done.usage else 0,  # none when the SDK stopped at `length`
            output_tokens=done.usage.completion_tokens if done.usage else 0,
            raw=done,
            parsed=getattr(choice.message, "parsed", None),
            events=events,
        )


class ResponsesDriver(_OpenAi):
    """`client.responses`."""

    name = "openai-responses"
    dialect = "openai_responses"
    stream_error = RuntimeError  # of a failed response the SDK only says that it wasn't completed
    ends: ClassVar[dict[str, str]] = {"stop": "completed", "length": "incomplete", "tools": "completed"}

    def user(self, text: str, *, image: str | None = None) -> list[Any]:
        parts: list[Any] = [{"type": "input_text", "text": text}]
        if image is not None:
            parts.insert(0, {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{image}"})
        return [{"type": "message", "role": "user", "content": parts}]

    def said(self, answer: Answer) -> list[Any]:
        return [item.model_dump(exclude_unset=True, exclude={"parsed_arguments"}) for item in answer.raw.output]

    def results(self, answer: Answer, texts: Sequence[str]) -> list[Any]:
        return [
            {"type": "function_call_output", "call_id": call.id, "output": text}
            for call, text in zip(answer.calls, texts, strict=True)
        ]

    async def ask(
        self,
        client: openai.AsyncOpenAI,
        turns: list[Any],
        *,
        stream: bool,
        tools: bool = False,
        schema: type[BaseModel] | None = None,
        limit: int | None = None,
    ) -> Answer:
        options: dict[str, Any] = {
            "model": MODEL,
            "input": turns,
            "store": False,
            "include": ["reasoning.encrypted_content"],
        }
        if limit is not None:
            options["max_output_tokens"] = limit
        if tools:
            options["tools"] = [
                {"type": "function", "name": "ls", "description": "Lists.", "parameters": PARAMETERS, "strict": True}
            ]
        events: list[str] = []
        done: Any
        last: Any
        if stream:
            if schema is not None:
                options["text_format"] = schema
            async with client.responses.stream(**options) as reader:
                async for event in reader:
                    events.append(event.type)
                    last = event
                # The reader knows no ends but the complete one.
                done = last.response if last.type == "response.incomplete" else await reader.get_final_response()
        elif schema is not None:
            done = await client.responses.parse(**options, text_format=schema)
        else:
            done = await client.responses.create(**options)
        return Answer(
            text=done.output_text,
            reasoning="".join(
                part.text for item in done.output if item.type == "reasoning" for part in item.content or item.summary
            ),
            calls=[
                Call(item.call_id, item.name, json.loads(item.arguments))
                for item in done.output
                if item.type == "function_call"
            ],
            finish=done.status,
            prompt_tokens=done.usage.input_tokens,
            output_tokens=done.usage.output_tokens,
            raw=done,
            parsed=getattr(done, "output_parsed", None),
            events=events,
        )

    async def count(self, client: openai.AsyncOpenAI, turns: list[Any]) -> int | None:
        return (await client.responses.input_tokens.count(model=MODEL, input=turns)).input_tokens


__all__ = ["PNG", "ChatDriver", "ResponsesDriver"]
