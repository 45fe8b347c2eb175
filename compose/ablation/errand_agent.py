"""An agent for sessions of many calls: several errands in one conversation, one after the other. A program of its own, standard library only.

    python errand_agent.py "Write the word heron to a.txt." "Write the word grape to b.txt." …

Whatever the model replies, the conversation is only ever appended to: a tool's result after a call, the next errand after none.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

SYSTEM = "You are a coding agent."
CALLS_PER_ERRAND = 3
MAX_TOKENS = 48


def tool(name: str, description: str, **parameters: str) -> dict[str, Any]:
    """A tool whose parameters are all texts, and needed."""
    properties = {key: {"type": "string", "description": words} for key, words in parameters.items()}
    schema = {"type": "object", "required": list(properties), "properties": properties}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    tool("read", "Read a file.", path="The file"),
    tool("write", "Write a file.", path="The file", content="What it is to hold"),
]


def ask(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The model's next message."""
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "tools": TOOLS, "max_tokens": MAX_TOKENS}
    request = urllib.request.Request(  # noqa: S310 - the address that the session was given
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
        message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
        return message


def result_of(call: dict[str, Any]) -> str:
    """What a tool says to a call; nothing outside of the working directory is touched."""
    try:
        given = json.loads(call["function"]["arguments"])
        path = Path(given["path"])
        if path.name != str(path):
            return "error: only files of this directory"
        if call["function"]["name"] == "read":
            return path.read_text(errors="replace")
        path.write_text(given["content"])
    except (ValueError, KeyError, TypeError, OSError) as error:
        return f"error: {error}"
    return f"wrote {path}"


def main(errands: list[str]) -> None:
    """All errands, one after the other."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    for errand in errands:
        messages.append({"role": "user", "content": errand})
        for _ in range(CALLS_PER_ERRAND):
            reply = ask(messages)
            messages.append(reply)
            if not reply.get("tool_calls"):
                break
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": result_of(call)} for call in reply["tool_calls"]
            ]


if __name__ == "__main__":
    main(sys.argv[1:])
