"""The scripted policy of the bench's sessions: so many turns, each a paragraph and a tool call, then a last sentence."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from typing import Any

ASSISTANT = "<|im_start|>assistant\n"
_TEXT = (
    "the counter starts at zero so this test reads one line too many and fails while the file is still open that value comes from "
    "an import which returns before anything was closed a path with spaces breaks it again error in parser module second loop "
    "check write result into table print column width unknown encoding retry after change expected seven but got eleven"
)
_WORDS = _TEXT.split()


def reply(prompt: str, request: Mapping[str, Any]) -> str:
    """`turns=N` tool calls of `note` with `words=W` words before each; the text differs from turn to turn, as a model's does."""
    turn = prompt.count(ASSISTANT) - 1
    words = random.Random(f"{turn} {len(request)}")
    text = " ".join(words.choices(_WORDS, k=_number(prompt, "words")))
    if turn >= _number(prompt, "turns"):
        return "All of it is done."
    call = json.dumps({"name": "note", "arguments": {"text": " ".join(words.choices(_WORDS, k=10))}})
    return f"{text}.\n<tool_call>\n{call}\n</tool_call>"


def _number(prompt: str, name: str) -> int:
    found = re.search(rf"\b{name}=([0-9]+)", prompt)
    return int(found.group(1)) if found else 1
