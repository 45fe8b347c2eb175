"""Requests and answers of each dialect, as a test says and reads them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import aiohttp

TOOL = {
    "name": "bash",
    "description": "Runs a command.",
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


@dataclass(frozen=True)
class Said:
    """An answer as a harness sees it."""

    text: str
    tools: list[tuple[str, Any]]
    finish: str
    is_over: bool


class Chat:
    """OpenAI Chat Completions."""

    name = "openai_chat"
    path = stream_path = "/v1/chat/completions"

    def request(self, text: str = "Hi", *, stream: bool = False, tools: bool = False, **changes: Any) -> dict[str, Any]:
        body: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": text}], "stream": stream}
        if tools:
            body["tools"] = [{"type": "function", "function": TOOL}]
        return {**body, **changes}

    def headers(self, secret: str) -> dict[str, str]:
        return {"authorization": f"Bearer {secret}"}

    def read_whole(self, body: Any) -> Said:
        choice = body["choices"][0]
        calls = [
            (c["function"]["name"], json.loads(c["function"]["arguments"]))
            for c in choice["message"].get("tool_calls") or []
        ]
        return Said(choice["message"]["content"] or "", calls, choice["finish_reason"], True)

    def read_stream(self, body: str) -> Said:
        text, finish, tools = "", "", {}
        for event in events(body):
            for choice in event.get("choices", []):
                text += choice["delta"].get("content") or ""
                for call in choice["delta"].get("tool_calls") or []:
                    name, arguments = tools.get(call["index"], ("", ""))
                    function = call.get("function", {})
                    tools[call["index"]] = (name or function.get("name", ""), arguments + function.get("arguments", ""))
                finish = choice.get("finish_reason") or finish
        calls = (
            [(name, json.loads(arguments)) for name, arguments in tools.values()] if finish else list(tools.values())
        )
        return Said(text, calls, finish, "data: [DONE]" in body)

    def error_of(self, body: Any) -> tuple[str, str]:
        return str(body["error"]["type"]), str(body["error"]["message"])


class Anthropic:
    """Anthropic Messages."""

    name = "anthropic"
    path = stream_path = "/v1/messages"

    def request(self, text: str = "Hi", *, stream: bool = False, tools: bool = False, **changes: Any) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": "policy",
            "max_tokens": 500,
            "messages": [{"role": "user", "content": text}],
            "stream": stream,
        }
        if tools:
            body["tools"] = [{"name": "bash", "description": "Runs.", "input_schema": TOOL["parameters"]}]
        return {**body, **changes}

    def headers(self, secret: str) -> dict[str, str]:
        return {"x-api-key": secret, "anthropic-version": "2023-06-01"}

    def read_whole(self, body: Any) -> Said:
        text = "".join(b["text"] for b in body["content"] if b["type"] == "text")
        calls = [(b["name"], b["input"]) for b in body["content"] if b["type"] == "tool_use"]
        return Said(text, calls, body["stop_reason"], True)

    def read_stream(self, body: str) -> Said:
        text, finish, is_over, blocks, stopped = "", "", False, {}, set()
        for event in events(body):
            match event["type"]:
                case "content_block_start":
                    blocks[event["index"]] = [event["content_block"], ""]
                case "content_block_delta":
                    text += event["delta"].get("text", "")
                    blocks[event["index"]][1] += event["delta"].get("partial_json", "")
                case "content_block_stop":
                    stopped.add(event["index"])
                case "message_delta":
                    finish = event["delta"].get("stop_reason") or finish
                case "message_stop":
                    is_over = True
        calls = [
            (block["name"], json.loads(partial or "{}") if index in stopped else partial)
            for index, (block, partial) in blocks.items()
            if block["type"] == "tool_use"
        ]
        return Said(text, calls, finish, is_over)

    def error_of(self, body: Any) -> tuple[str, str]:
        assert body["type"] == "error"
        return str(body["error"]["type"]), str(body["error"]["message"])


class Responses:
    """OpenAI Responses."""

    name = "openai_responses"
    path = stream_path = "/v1/responses"

    def request(self, text: str = "Hi", *, stream: bool = False, tools: bool = False, **changes: Any) -> dict[str, Any]:
        body: dict[str, Any] = {"model": "policy", "input": text, "stream": stream}
        if tools:
            body["tools"] = [{"type": "function", **TOOL}]
        return {**body, **changes}

    def headers(self, secret: str) -> dict[str, str]:
        return {"authorization": f"Bearer {secret}"}

    def read_whole(self, body: Any) -> Said:
        messages = [item for item in body["output"] if item["type"] == "message"]
        text = "".join(part["text"] for item in messages for part in item["content"] if "text" in part)
        calls = [
            (item["name"], json.loads(item["arguments"])) for item in body["output"] if item["type"] == "function_call"
        ]
        return Said(text, calls, body["status"], True)

    def read_stream(self, body: str) -> Said:
        text, finish, calls, done = "", "", {}, set()
        for event in events(body):
            match event["type"]:
                case "response.output_text.delta":
                    text += event["delta"]
                case "response.output_item.added" if event["item"]["type"] == "function_call":
                    calls[event["output_index"]] = [event["item"]["name"], ""]
                case "response.function_call_arguments.delta":
                    calls[event["output_index"]][1] += event["delta"]
                case "response.output_item.done":
                    done.add(event["output_index"])
                case "response.completed" | "response.incomplete":
                    finish = event["response"]["status"]
        tools = [
            (name, json.loads(arguments) if index in done else arguments) for index, (name, arguments) in calls.items()
        ]
        return Said(text, tools, finish, bool(finish))

    def error_of(self, body: Any) -> tuple[str, str]:
        return str(body["error"]["type"]), str(body["error"]["message"])


class Google:
    """Google generateContent, whose path says whether the answer is a stream."""

    name = "google"
    path = "/v1beta/models/policy:generateContent"
    stream_path = "/v1beta/models/policy:streamGenerateContent?alt=sse"

    def request(self, text: str = "Hi", *, stream: bool = False, tools: bool = False, **changes: Any) -> dict[str, Any]:
        del stream
        body: dict[str, Any] = {"contents": [{"role": "user", "parts": [{"text": text}]}]}
        if tools:
            body["tools"] = [{"functionDeclarations": [TOOL]}]
        if "top_p" in changes:
            body["generationConfig"] = {"topP": changes.pop("top_p")}
        return {**body, **changes}

    def headers(self, secret: str) -> dict[str, str]:
        return {"x-goog-api-key": secret}

    def read_whole(self, body: Any) -> Said:
        [candidate] = body["candidates"]
        parts = candidate["content"]["parts"]
        calls = [(p["functionCall"]["name"], p["functionCall"]["args"]) for p in parts if "functionCall" in p]
        text = "".join(part.get("text", "") for part in parts if not part.get("thought"))
        return Said(text, calls, candidate.get("finishReason", ""), True)

    def read_stream(self, body: str) -> Said:
        read = [self.read_whole(event) for event in events(body) if "error" not in event]
        finish = read[-1].finish if read else ""
        text, calls = "".join(said.text for said in read), [call for said in read for call in said.tools]
        return Said(text, calls, finish, bool(finish))

    def error_of(self, body: Any) -> tuple[str, str]:
        return str(body["error"]["status"]), str(body["error"]["message"])


Wire = Chat | Anthropic | Responses | Google
WIRES: list[Wire] = [Chat(), Anthropic(), Responses(), Google()]


def events(body: str) -> list[Any]:
    """The data of a stream's complete events."""
    complete = body[: body.rfind("\n\n") + 1]
    lines = [line[6:] for line in complete.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


class Reader:
    """Reads a streamed answer piece by piece."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.body = ""

    async def more(self, timeout_s: float) -> bool:
        """Reads one more piece; False when none came in time, or the stream is over."""
        import asyncio

        try:
            async with asyncio.timeout(timeout_s):
                data = await self._response.content.readany()
        except TimeoutError:
            return False
        self.body += data.decode()
        return bool(data)
