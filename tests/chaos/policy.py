"""The storm's scripted policy: every reply bears a nonce of its own, and the engine notes which ones a prompt brings back.

A harness that sends a nonce back has received that reply in full: so this ledger knows what was acknowledged whatever
the harness, without asking it. `POLYNYA_CHAOS_LEDGER` names the file, outside of everything that is killed.
"""

from __future__ import annotations

import json
import os
import re
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from compose.cpu_engine.scripted import Scripted
from tests.chaos.ledger import NONCE, append

ASSISTANT = "<|im_start|>assistant\n"


def _number(prompt: str, name: str, default: float) -> float:
    found = re.search(rf"\b{name}=([0-9.]+)", prompt)
    return float(found.group(1)) if found else default


def reply(prompt: str, request: Mapping[str, Any]) -> Scripted:
    """`turns=N` calls of the tool that the instruction names (`tool=bash`, else `note`), then a closing sentence."""
    del request
    nonce = f"nonce-{uuid.uuid4().hex}"
    ledger = os.environ.get("POLYNYA_CHAOS_LEDGER")
    if ledger:
        seen = sorted(set(NONCE.findall(prompt)))
        append(Path(ledger), {"at": time.time_ns() // 1_000_000, "nonce": nonce, "seen": seen})
    turn = prompt.count(ASSISTANT) - 1
    delay_ms = _number(prompt, "delay_ms", 0.0)
    if turn >= _number(prompt, "turns", 1):
        return Scripted(f"All steps are done, {nonce}.", token_delay_ms=delay_ms)
    if "tool=bash" in prompt:
        call = {"name": "bash", "arguments": {"command": f"echo step {turn}"}}
    else:
        call = {"name": "note", "arguments": {"text": f"this is step {turn}"}}
    return Scripted(f"Step {turn}, {nonce}.\n<tool_call>\n{json.dumps(call)}\n</tool_call>", token_delay_ms=delay_ms)
