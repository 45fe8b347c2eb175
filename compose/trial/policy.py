"""The trial's script as a scripted policy: `polynya up --engine scripted:compose.trial.policy:reply`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from compose.trial.script import Step, dumps, next_step

ASSISTANT: Final = "<|im_start|>assistant\n"
_TOOLS = re.compile(r"<tools>\n(.*?)\n</tools>", re.DOTALL)


def reply(prompt: str, request: Mapping[str, Any]) -> str:
    """The text of the next turn, in the form that the Qwen3 template teaches."""
    del request
    return text_of(next_step(tools_of(prompt), prompt.count(ASSISTANT) - 1, prompt))


def tools_of(prompt: str) -> list[dict[str, Any]]:
    """The tools that stand in the head of a prompt, one JSON object a line; a harness' own words may have such a block too."""
    return [json.loads(line) for block in _TOOLS.findall(prompt) for line in block.splitlines() if line.startswith("{")]


def text_of(step: Step) -> str:
    """A step as the model writes it."""
    calls = [
        f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {dumps(call.arguments)}}}\n</tool_call>'
        for call in step.calls
    ]
    return "\n".join([step.text, *calls])
