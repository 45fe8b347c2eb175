"""Google's SDK: generateContent."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, ClassVar

from google import genai
from google.genai import errors as sdk_errors
from google.genai import types
from pydantic import BaseModel

from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.sdk.driver import MODEL, PARAMETERS, Answer, Call, Driver

_NO_CALLING = types.AutomaticFunctionCallingConfig(disable=True)


class GoogleDriver(Driver):
    """`client.aio.models`."""

    name = "google-genai"
    dialect = "google"
    ends: ClassVar[dict[str, str]] = {"stop": "STOP", "length": "MAX_TOKENS", "tools": "STOP"}
    errors: ClassVar[dict[int, type[Exception]]] = {
        **dict.fromkeys((400, 401, 404, 409, 413, 429), sdk_errors.ClientError),
        **dict.fromkeys((500, 503), sdk_errors.ServerError),
    }
    stream_error = sdk_errors.ServerError

    @asynccontextmanager
    async def client(self, stack: Stack, *, retries: int = 0, secret: str | None = None) -> AsyncIterator[genai.Client]:
        options = types.HttpOptions(
            base_url=stack.proxy.data_address,
            timeout=20_000,
            retry_options=types.HttpRetryOptions(attempts=retries + 1, initial_delay=0.01, max_delay=0.02),
        )
        client = genai.Client(api_key=secret or stack.secret, http_options=options)
        try:
            yield client
        finally:
            await client.aio.aclose()
            client.close()

    def user(self, text: str, *, image: str | None = None) -> list[Any]:
        parts = [types.Part(text=text)]
        if image is not None:
            parts.insert(0, types.Part.from_bytes(data=base64.b64decode(image), mime_type="image/png"))
        return [types.Content(role="user", parts=parts)]

    def said(self, answer: Answer) -> list[Any]:
        return [types.Content(role="model", parts=answer.raw)]

    def results(self, answer: Answer, texts: Sequence[str]) -> list[Any]:
        parts = [
            types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name, response={"output": text}))
            for call, text in zip(answer.calls, texts, strict=True)
        ]
        return [types.Content(role="user", parts=parts)]

    def nonsense(self) -> list[Any]:
        return [types.Content(role="nobody", parts=[types.Part(text="Hi")])]

    async def ask(
        self,
        client: genai.Client,
        turns: list[Any],
        *,
        stream: bool,
        tools: bool = False,
        schema: type[BaseModel] | None = None,
        limit: int | None = None,
    ) -> Answer:
        declared = types.FunctionDeclaration(name="ls", description="Lists.", parameters_json_schema=PARAMETERS)
        config = types.GenerateContentConfig(
            max_output_tokens=limit,
            tools=[types.Tool(function_declarations=[declared])] if tools else None,
            automatic_function_calling=_NO_CALLING,
            thinking_config=types.ThinkingConfig(include_thoughts=True),
            response_mime_type="application/json" if schema is not None else None,
            response_schema=schema,
        )
        options: dict[str, Any] = {"model": MODEL, "contents": turns, "config": config}
        responses: list[types.GenerateContentResponse] = []
        if stream:
            responses += [r async for r in await client.aio.models.generate_content_stream(**options)]
        else:
            responses.append(await client.aio.models.generate_content(**options))
        parts = [part for response in responses for part in response.parts or []]
        last = responses[-1]
        assert last.candidates is not None
        assert last.usage_metadata is not None
        reason = last.candidates[0].finish_reason
        text = "".join(part.text or "" for part in parts if not part.thought)
        calls = [part.function_call for part in parts if part.function_call is not None]
        usage = last.usage_metadata
        return Answer(
            text=text,
            reasoning="".join(part.text or "" for part in parts if part.thought),
            calls=[Call(call.id or "", call.name or "", call.args or {}) for call in calls],
            finish=reason.value if reason is not None else "",
            prompt_tokens=usage.prompt_token_count or 0,
            output_tokens=(usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0),
            raw=parts,
            parsed=schema.model_validate_json(text) if stream and schema is not None else last.parsed,
        )

    async def count(self, client: genai.Client, turns: list[Any]) -> int | None:
        return (await client.aio.models.count_tokens(model=MODEL, contents=turns)).total_tokens

    async def models(self, client: genai.Client) -> list[str]:
        return [model.name or "" async for model in await client.aio.models.list()]

    async def missing(self, client: genai.Client) -> Any:
        return await client.aio.models.embed_content(model=MODEL, contents="Hi")

    def status_of(self, error: Any) -> int:
        return int(error.code)

    def retry_after_of(self, error: Any) -> str | None:
        """This SDK shows no headers, but the body says the same."""
        details = error.details["error"].get("details") or []
        found = next((detail["retryDelay"] for detail in details if "retryDelay" in detail), None)
        return None if found is None else str(found).removesuffix("s")
