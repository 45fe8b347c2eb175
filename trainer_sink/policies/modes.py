"""How weights are exchanged, and what an engine says of those that it has. Plain values, without an HTTP client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PauseMode = Literal["retract", "in_place"]
"""What becomes of requests that run while the weights change.

`retract`: their keys and values are computed again under the new weights, and the prefix cache is emptied, so that every token's
logprob is that of a forward pass with its own version. `in_place`: both are kept, which spares computing long contexts again;
logprobs are then those that sampled the tokens, from a mixture of old and new weights that no forward pass gives again.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """How long each step on one engine may take, in seconds. Loading is the long one: the engine reads a checkpoint from a disk."""

    pause_s: float = 30.0
    load_s: float = 600.0
    continue_s: float = 10.0
    info_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """What an engine says that it serves."""

    version: str
    model_path: str


@dataclass(frozen=True, slots=True)
class EngineReport:
    """An engine of the policy and what it serves; `problem` says why that isn't known."""

    url: str
    version: str = ""
    model_path: str = ""
    problem: str = ""
