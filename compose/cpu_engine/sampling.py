"""From hidden states to token ids and log-probabilities.

The rules are SGLang's: log-probabilities are those after the temperature and before top_k, top_p and min_p; those three
are applied together to the sorted probabilities; a temperature of zero is greedy with the raw log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

GREEDY_BELOW = 1e-6  # SGLang's threshold
ROW_BLOCK = 16  # logits of this many rows at a time: 10 MB at 152k tokens, measured twice as fast as 64 rows

DRAW_BLOCK = 1024

Top: TypeAlias = list[tuple[float, int]]
"""(log-probability, id) of the likeliest tokens at one place, the likeliest first."""


@dataclass(frozen=True, slots=True)
class SamplingRule:
    """How to choose one token. `top_k` None means all tokens."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    min_p: float = 0.0

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1

    @property
    def divisor(self) -> float:
        """What logits are divided by."""
        return 1.0 if self.temperature < GREEDY_BELOW else self.temperature


@dataclass(slots=True)
class Draw:
    """One row of hidden states from which one token is wanted.

    With `target` the token is given and only its log-probability is asked for.
    """

    rule: SamplingRule
    generator: torch.Generator | None = None
    target: int | None = None
    top: int = 0
    """How many of the likeliest tokens are wanted with their log-probabilities."""


class Head:
    """The output projection, with buffers for logits and weights (fresh memory for each call costs more than the product)."""

    def __init__(self, weight: Tensor) -> None:
        """`weight` is (vocabulary, width), in float32."""
        self._columns = weight.t()
        self._vocabulary = weight.shape[0]
        padded = -(-self._vocabulary // DRAW_BLOCK) * DRAW_BLOCK
        self._logits = torch.empty((ROW_BLOCK, self._vocabulary))
        self._weights = torch.zeros((ROW_BLOCK, padded))  # what lies past the vocabulary stays zero: never drawn

    def draw(self, hidden: Tensor, draws: list[Draw]) -> tuple[list[int], list[float], list[Top]]:
        """Token ids, log-probabilities and likeliest tokens for (rows, width) hidden states, one `Draw` per row."""
        ids: list[int] = []
        logprobs: list[float] = []
        tops: list[Top] = []
        for start in range(0, len(draws), ROW_BLOCK):
            block = draws[start : start + ROW_BLOCK]
            logits, weights = self._logits[: len(block)], self._weights[: len(block)]
            torch.mm(hidden[start : start + len(block)], self._columns, out=logits)
            logits.div_(torch.tensor([draw.rule.divisor for draw in block]).unsqueeze(1))
            logits.sub_(logits.amax(1, keepdim=True))
            torch.exp(logits, out=weights[:, : self._vocabulary])
            sums = weights.view(len(block), -1, DRAW_BLOCK).sum(2)
            chosen = torch.tensor(
                [
                    _choose(logits[row], weights[row], sums[row], draw) if draw.target is None else draw.target
                    for row, draw in enumerate(block)
                ]
            )
            picked = logits.gather(1, chosen.unsqueeze(1)).squeeze(1)
            ids.extend(chosen.tolist())
            norms = sums.sum(1).log()
            logprobs.extend((picked - norms).tolist())
            tops.extend(_likeliest(logits[row], norms[row], draw.top) for row, draw in enumerate(block))
        return ids, logprobs, tops


def _likeliest(logits: Tensor, norm: Tensor, count: int) -> Top:
    if not count:
        return []
    values, ids = torch.topk(logits, min(count, logits.shape[0]))
    return list(zip((values - norm).tolist(), ids.tolist(), strict=True))


def _choose(logits: Tensor, weights: Tensor, sums: Tensor, draw: Draw) -> int:
    """One token id from (vocabulary,) logits, their exponentials, and the sums of these by block."""
    rule = draw.rule
    if rule.is_greedy:
        return int(logits.argmax())
    if rule.top_k is None and rule.top_p >= 1.0 and rule.min_p <= 0.0:
        # First the block, then the token in it: a running sum over 152k weights would cost as much as all the rest.
        block = _invert(sums, draw.generator)
        inside = weights[block * DRAW_BLOCK : (block + 1) * DRAW_BLOCK]
        return block * DRAW_BLOCK + _invert(inside, draw.generator)
    count = logits.shape[0]
    ordered, order = torch.topk(weights[:count] / sums.sum(), count if rule.top_k is None else min(rule.top_k, count))
    before = ordered.cumsum(0) - ordered
    kept = (before <= rule.top_p) & (ordered >= ordered[0] * rule.min_p)
    return int(order[_invert(ordered * kept, draw.generator)])


def _invert(weights: Tensor, generator: torch.Generator | None) -> int:
    """Index drawn in proportion to `weights`, by inverting their running sum with one uniform number."""
    running = weights.double().cumsum(0)
    point = torch.rand((), dtype=torch.float64, generator=generator) * running[-1]
    index = int(torch.searchsorted(running, point, right=True))  # right=True skips weights of zero
    # Rounding can put the point on the very end, past every weight.
    return index if index < weights.shape[0] else int(weights.nonzero()[-1])
