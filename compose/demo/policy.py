"""The demo's scripted policy: it writes the text of each reply; ids and logprobs still come from tokenizer and model.

Three characters take turns: one writes the program right at once, one makes a mistake, sees it in its own test and
corrects it, one makes the mistake and doesn't care. So the rewards of a group differ, as a policy's would.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from typing import Any, Final

RIGHT: Final = "import sys\n\nprint(len(sys.stdin.read().split()))\n"
WRONG: Final = "import sys\n\nprint(len(sys.stdin.read()))\n"
TEST: Final = "printf 'one two three' | python3 wordcount.py"

ASSISTANT: Final = "<|im_start|>assistant\n"
CHARACTERS: Final = ("careful", "mending", "careless", "careful")
_next_character = itertools.cycle(CHARACTERS)

# How each harness calls its tools for writing a file and running a command.
PI_TOOLS: Final = ("write", "bash")
CLAUDE_CODE_TOOLS: Final = ("Write", "Bash")
_WORKING_DIRECTORY = re.compile(r"[Ww]orking directory: *(/[^\s<>\"\\]+)")


def tool_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call in the form that the Qwen3 template teaches."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': dict(arguments)})}\n</tool_call>"


def reply(prompt: str, request: Mapping[str, Any]) -> str:
    """The text of the next turn: write, test, and then go by what the test printed."""
    del request
    turns = prompt.split(ASSISTANT)[1:-1]
    write, bash = CLAUDE_CODE_TOOLS if '"name": "Write"' in prompt else PI_TOOLS
    if not turns:
        character = next(_next_character)
        return _opening(character) + _write(write, prompt, RIGHT if character == "careful" else WRONG)
    character = next((c for c in CHARACTERS if _opening(c) in turns[0]), "careless")
    last_said = turns[-1]
    if f'"name": "{write}"' in last_said:
        return "Now I test it.\n" + tool_call(bash, {"command": TEST})
    if _printed_three(last_said):
        return "wordcount.py is there and counts three words in the test."
    if character == "mending" and len(turns) < 4:
        return "It counted characters, not words. I correct that.\n" + _write(write, prompt, RIGHT)
    return "wordcount.py is there."


def _opening(character: str) -> str:
    words = {"careful": "I write the program.", "mending": "I write a first version.", "careless": "Quickly done."}
    return words[character] + "\n"


def _write(tool: str, prompt: str, content: str) -> str:
    if tool == "Write":
        found = _WORKING_DIRECTORY.search(prompt)
        directory = found.group(1) if found else "."
        return tool_call(tool, {"file_path": f"{directory}/wordcount.py", "content": content})
    return tool_call(tool, {"path": "wordcount.py", "content": content})


def _printed_three(turn: str) -> bool:
    """Whether the tool's answer, which stands behind the turn's own text, is the number 3."""
    answer = turn.partition("<tool_response>")[2].partition("</tool_response>")[0]
    return re.search(r"(?m)^3\b", answer.strip()) is not None
