"""An agent for sessions of many calls: it asks again while its file isn't right. A program of its own, standard library only.

    python asking_agent.py WORD FILE TIMES

The conversation is only ever appended to: a tool's result after a call, a new request after a reply without one. So sessions
that fail are long, as they are with agents that try and try.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

SYSTEM = "You are a coding agent."
CALLS_PER_REQUEST = 3
AGAIN = "It is not right. Try again."
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


def is_right(word: str, file: str) -> bool:
    """Whether the file holds the word and nothing else."""
    try:
        return Path(file).read_text(errors="replace").strip() == word
    except OSError:
        return False


def main(word: str, file: str, times: int) -> None:
    """Ask once, and then up to `times` times more."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}]
    for request in [f"Write the word {word} to {file}.", *[AGAIN] * times]:
        messages.append({"role": "user", "content": request})
        for _ in range(CALLS_PER_REQUEST):
            reply = ask(messages)
            messages.append(reply)
            if not reply.get("tool_calls"):
                break
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": result_of(call)} for call in reply["tool_calls"]
            ]
        if is_right(word, file):
            return


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
