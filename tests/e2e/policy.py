"""A scripted policy for tests: an agent's instruction says how many tool calls it gets and how slowly tokens come."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from compose.cpu_engine.scripted import Scripted
from compose.trial import policy as trial
from compose.trial.script import MARK
from examples import policy as examples
from tests.e2e import swe

ASSISTANT = "<|im_start|>assistant\n"


def _number(prompt: str, name: str, default: float) -> float:
    found = re.search(rf"\b{name}=([0-9.]+)", prompt)
    return float(found.group(1)) if found else default


def reply(prompt: str, request: Mapping[str, Any]) -> Scripted:
    """`turns=N` tool calls of `note`, then a closing sentence; `delay_ms=D` between two tokens. Trials, repairs and examples go by their own scripts."""
    if MARK in prompt:
        return Scripted(trial.reply(prompt, request))
    if swe.MARK in prompt:
        return Scripted(swe.reply(prompt))
    if (said := examples.answer(prompt)) is not None:
        return Scripted(said)
    turn = prompt.count(ASSISTANT) - 1
    delay_ms = _number(prompt, "delay_ms", 0.0)
    if turn < _number(prompt, "turns", 1):
        call = json.dumps({"name": "note", "arguments": {"text": f"this is step {turn}"}})
        return Scripted(f"Step {turn}.\n<tool_call>\n{call}\n</tool_call>", token_delay_ms=delay_ms)
    return Scripted("All steps are done.", token_delay_ms=delay_ms)
