"""Agent sessions with real conversations, for tests of exports."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from schemas import arrays
from schemas.records import ScoredTrajectory, Trace
from tests.trainer_sink.scored import scored

USER = {"role": "user", "content": "Fix the bug in größe.py."}
SYSTEM = {"role": "system", "content": "You are a careful engineer."}


def tool(name: str, properties: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    parameters = {"type": "object", "properties": properties or {}}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters, **more}}


READ = tool("read", {"path": {"type": "string"}, "limit": {"type": "integer", "default": 100}})
BASH = tool("bash", {"command": {"type": ["string", "null"]}, "limit": {"type": "string"}}, strict=False)


def call(name: str, arguments: Any, number: int = 0) -> dict[str, Any]:
    """A tool call with its arguments as the engine's text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": text}}


def calls(*made: dict[str, Any], content: Any = "", **more: Any) -> dict[str, Any]:
    """An assistant's message that calls tools."""
    return {"role": "assistant", "content": content, "tool_calls": list(made), **more}


def result(text: str, number: int = 0) -> dict[str, Any]:
    """A tool's result."""
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


def says(text: str, **more: Any) -> dict[str, Any]:
    """An assistant's message."""
    return {"role": "assistant", "content": text, **more}


def talk(answer: str = "Done.", *, steps: int = 1, path: str = "größe.py") -> list[dict[str, Any]]:
    """A whole conversation: so many tool calls, then an answer."""
    messages: list[dict[str, Any]] = [SYSTEM, USER]
    for n in range(steps):
        messages += [calls(call("read", {"path": path, "limit": n}, n)), result(f"line {n} → é\u2028", n)]
    return [*messages, says(answer, reasoning_content="It was off by one.")]


def traced(
    messages: Sequence[Any], *, index: int = 0, tools: Sequence[Any] = (READ,), size: int = 6, **more: Any
) -> Trace:
    """A trace of `size` tokens that says this."""
    return Trace(
        index=index,
        prompt_ids=arrays.pack_ids([1, 2]),
        response_ids=arrays.pack_ids([3] * (size - 2)),
        loss_mask=arrays.pack_mask([1] * (size - 2)),
        logprobs=arrays.pack_logprobs([-0.5] * (size - 2)),
        messages=list(messages),
        tools=list(tools),
        **more,
    )


def run(
    task: str, index: int = 0, *messages: Any, group_size: int = 1, traces: Iterable[Trace] | None = None, **more: Any
) -> ScoredTrajectory:
    """A scored session that said `messages` (default: a talk of its own), or has these traces."""
    said = list(messages) or talk(f"Done with {task}, try {index}.")
    return scored(task, index, group_size, traces=list(traces) if traces is not None else [traced(said)], **more)
