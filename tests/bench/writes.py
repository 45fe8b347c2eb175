"""The scripted policy of two-call sessions, and what they are asked for: write a word to a file, then say so."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

ASSISTANT = "<|im_start|>assistant\n"
WORDS = ("amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron")
FILES = ("a.txt", "b.txt", "c.txt", "d.txt")
_ASKED = re.compile(r"Write the word (\w+) to (\S+)\.")


def instruction(number: int) -> str:
    """The task with this number, of 32 that there are."""
    return f"Write the word {WORDS[number % len(WORDS)]} to {FILES[number // len(WORDS) % len(FILES)]}."


def evaluator(number: int) -> dict[str, Any]:
    """Whether the file of that task holds exactly its word."""
    word, file = WORDS[number % len(WORDS)], FILES[number // len(WORDS) % len(FILES)]
    return {"name": "command", "options": {"command": f'test "$(cat {file})" = {word}'}}


def reply(prompt: str, request: Mapping[str, Any]) -> str:
    """The call that writes what the last user's message asks for; after a tool's answer the closing words."""
    del request
    if prompt.count(ASSISTANT) > 1:
        return "Done."
    word, file = _ASKED.findall(prompt)[-1]
    call = json.dumps({"name": "write", "arguments": {"path": file, "content": word}})
    return f"<tool_call>\n{call}\n</tool_call>"
