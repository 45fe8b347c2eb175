"""One request inside the engine: what was asked, what came out so far, and why it ended."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

import torch

from compose.cpu_engine.ragged import KeyValues
from compose.cpu_engine.sampling import SamplingRule, Top


@dataclass(frozen=True, slots=True)
class FinishReason:
    """Why a reply ended, in SGLang's words: `stop`, `length` or `abort`."""

    type: str
    matched: int | str | None = None
    length: int | None = None
    message: str | None = None

    def to_json(self) -> dict[str, object]:
        """The value of `meta_info.finish_reason`."""
        if self.type == "stop":
            return {"type": "stop", "matched": self.matched}
        if self.type == "length":
            return {"type": "length", "length": self.length}
        return {"type": "abort", "message": self.message, "status_code": None, "err_type": None}


@dataclass(frozen=True, slots=True)
class Limits:
    """When a reply ends."""

    max_new_tokens: int
    stop: tuple[str, ...] = ()
    stop_ids: frozenset[int] = frozenset()
    """Ids that end the reply: the request's and, without `ignore_eos`, the model's."""


@dataclass(eq=False, slots=True)
class Sequence:
    """State of one request. The scheduler writes it, on the event loop; handlers only read it and wait for `changed`."""

    rid: str
    prompt_ids: list[int]
    rule: SamplingRule
    limits: Limits
    streams: bool = False
    generator: torch.Generator | None = None
    script: list[int] | None = None
    """The reply's ids when a policy chose them; their log-probabilities are computed ahead, in one pass."""
    token_delay_s: float = 0.0
    output_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: int = 0
    """How many of the likeliest tokens are wanted at each place."""
    tops: list[Top] = field(default_factory=list)
    pending: deque[tuple[int, float, Top]] = field(default_factory=deque)
    """Tokens computed and not yet given out, oldest first."""
    spans: list[tuple[str, int, int]] = field(default_factory=list)
    """(weight version, first output token, one past the last), without gaps."""
    storage: KeyValues | None = None
    cached_tokens: int = 0
    retractions: int = 0
    is_prompt_shared: bool = False
    """The prompt's keys and values are in the prefix cache."""
    is_abort_wanted: bool = False
    finish: FinishReason | None = None
    error: str | None = None
    """Set instead of `finish` when the engine itself failed on this request."""
    next_at: float = 0.0
    """Monotonic time before which no further token is given out."""
    started_at: float = field(default_factory=time.monotonic)
    finished_at: float | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self.finish is not None or self.error is not None

    @property
    def is_computed(self) -> bool:
        """Whether a script has no token left whose log-probability is unknown."""
        return self.script is not None and len(self.output_ids) + len(self.pending) >= len(self.script)

    @property
    def known_count(self) -> int:
        """Tokens of the prompt and of the output so far; for a script, of the reply to its end."""
        return len(self.prompt_ids) + len(self.output_ids if self.script is None else self.script)

    def known(self, begin: int, end: int) -> list[int]:
        """A slice of these tokens (their whole list would be copied at every step)."""
        reply = self.output_ids if self.script is None else self.script
        shift = len(self.prompt_ids)
        return self.prompt_ids[begin:end] + reply[max(0, begin - shift) : max(0, end - shift)]

    def take(self, token_id: int, logprob: float, version: str, top: Top) -> None:
        """Append one token made by weights `version`."""
        self.output_ids.append(token_id)
        self.logprobs.append(logprob)
        self.tops.append(top)
        end = len(self.output_ids)
        if self.spans and self.spans[-1][0] == version:
            self.spans[-1] = (version, self.spans[-1][1], end)
        else:
            self.spans.append((version, end - 1, end))

    def end(self, *, finish: FinishReason | None = None, error: str | None = None) -> None:
        """Record why nothing more will come, and free what it held."""
        self.finish, self.error = finish, error
        self.finished_at = time.monotonic()
        self.storage = None
        self.pending.clear()
        self.changed.set()
