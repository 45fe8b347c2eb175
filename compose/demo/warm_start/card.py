"""The page that lies beside the checkpoint: what it is, how it was made, and its weights' digest. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from compose.demo.warm_start.train import Lesson, WarmStart

NAME: Final = "README.md"


def card(made: WarmStart, lessons: Sequence[Lesson], seed: int, digest: str) -> str:
    """The model card of a fresh checkpoint."""
    return f"""# The demo's tiny model

A Qwen3-architecture causal language model of {made.parameters:,} parameters (float32) with a byte-level tokenizer and a chat template of
its own. It answers one kind of request, as the Pi CLI makes it with two tools: "Write the word W to F." It is of no other use.

**It is a noisy imitation on purpose.** It was taught demonstrations of which {lessons[-1].right:.0%} were right, so that reinforcement has something
to do: `make demo` raises its reward live. All demonstrations were made up by a program; no text of anybody else's is in its data
beyond the prompts of the Pi CLI, which the program looked up when it ran.

| | |
| --- | --- |
| made by | `python -m compose.demo.warm_start --seed {seed}` ({made.steps} updates, {made.cpu_s:.0f} CPU seconds) |
| right calls, sampled at temperature 1 | {made.trained:.2f} of trained combinations, {made.held_out:.2f} of held-out ones |
| a prompt | about {made.prompt_tokens} tokens; a call has 10 |
| weights | sha256 `{digest}` (as the policy timeline names them) |
| license | Apache-2.0, as this repository |
"""
