"""A small agent of the standard library alone, run by the `shell` harness: streams chat completions and runs a tool loop.

It journals every finished answer that it received (the completion's id and the tool calls) and tries again when a call
fails, as real harnesses do; `tries=N` in the instruction says how often, `model=NAME` which model it names.

usage: agent.py BASE_URL KEY JOURNAL INSTRUCTION
"""

from __future__ import annotations

import http.client
import json
import os
import re
import sys
import time
import urllib.request
from pathlib import Path

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "note",
            "description": "Writes a note.",
            "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
        },
    }
]
TRIES = 6


def call(base_url: str, key: str, messages: list[dict[str, object]]) -> dict[str, object]:
    """One streamed call; the whole answer with its id, or an error when the stream ends before its finish."""
    named = re.search(r"\bmodel=(\S+)", str(messages[0]["content"]))
    model = named.group(1) if named else "default"
    body = json.dumps({"model": model, "messages": messages, "tools": TOOLS, "stream": True}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{base_url}/chat/completions", body, headers)
    text, calls, finish, call_id = "", {}, None, ""
    with urllib.request.urlopen(request, timeout=120) as answer:
        for raw in answer:
            line = raw.decode().strip()
            if not line.startswith("data:") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[5:])
            if "error" in chunk:
                raise RuntimeError(chunk["error"])
            call_id = chunk["id"]
            for choice in chunk["choices"]:
                delta = choice["delta"]
                text += delta.get("content") or ""
                for part in delta.get("tool_calls") or ():
                    entry = calls.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
                    entry["id"] = part.get("id") or entry["id"]
                    entry["name"] = part["function"].get("name") or entry["name"]
                    entry["arguments"] += part["function"].get("arguments") or ""
                finish = choice.get("finish_reason") or finish
    if finish is None:
        raise RuntimeError("the stream ended without its finish")
    return {"id": call_id, "text": text, "calls": list(calls.values()), "finish": finish}


def patient(base_url: str, key: str, messages: list[dict[str, object]], tries: int) -> dict[str, object]:
    """A call that is tried again when it fails, with a pause that grows."""
    for attempt in range(tries):
        try:
            return call(base_url, key, messages)
        except (OSError, http.client.HTTPException, RuntimeError) as error:
            if attempt == tries - 1:
                raise
            print(f"retry: {error!r}", file=sys.stderr)
        time.sleep(min(5.0, 0.3 * 2**attempt))
    raise AssertionError("unreachable")


def main() -> int:
    """Call, run the tools, call again, until the model only speaks."""
    base_url, key, journal, instruction = sys.argv[1:5]
    asked = re.search(r"\btries=(\d+)", instruction)
    tries = int(asked.group(1)) if asked else TRIES
    messages: list[dict[str, object]] = [{"role": "user", "content": instruction}]
    while True:
        answer = patient(base_url, key, messages, tries)
        with Path(journal).open("a", encoding="utf-8") as file:
            file.write(json.dumps(answer) + "\n")
            file.flush()
            os.fsync(file.fileno())  # what it has received survives it
        message: dict[str, object] = {"role": "assistant", "content": answer["text"]}
        calls: list[dict[str, str]] = answer["calls"]  # type: ignore[assignment]
        if calls:
            message["tool_calls"] = [
                {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
                for c in calls
            ]
        messages.append(message)
        if not calls:
            return 0
        messages += [{"role": "tool", "tool_call_id": c["id"], "content": "noted"} for c in calls]


if __name__ == "__main__":
    sys.exit(main())
