"""Which sequences go through the model together, and what they begin with in common. Pure numpy.

Sessions of one harness share most of their prompt. Those tokens are computed once per pass and their keys and values used for
every sequence, which for short replies to a long prompt is most of the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer_sink.sequences import TrainingSequence


@dataclass(frozen=True, slots=True)
class Pass:
    """One forward pass: places of its sequences, and how many tokens all of them begin with. `width`: the longest rest."""

    members: tuple[int, ...]
    prefix: int
    width: int

    @property
    def tokens(self) -> int:
        """What is computed: the prefix once, the rests padded to the longest."""
        return self.prefix + len(self.members) * self.width


def tokens_of(sequence: TrainingSequence) -> NDArray[np.int32]:
    """Prompt and response, shape (P + R,)."""
    return np.concatenate([sequence.prompt_ids, sequence.response_ids])


def trained_places(sequence: TrainingSequence) -> NDArray[np.int64]:
    """Where in `tokens_of` the trained tokens stand; never 0, since the first token of all has nothing to be predicted from."""
    places = np.flatnonzero(sequence.loss_mask) + len(sequence.prompt_ids)
    return places[places > 0]


def plan_passes(sequences: Sequence[TrainingSequence], max_tokens: int, *, share: bool = True) -> list[Pass]:
    """Cut a step into passes of at most `max_tokens` computed tokens (one sequence may have more), the cheaper of two ways.

    Either all sequences share one prefix, or those of each group share theirs; without `share` nothing is shared.
    """
    places = [i for i in range(len(sequences)) if len(trained_places(sequences[i]))]
    if not places:
        return []
    together = _cut(sequences, places, max_tokens, share=share)
    if not share:
        return together
    groups: dict[str, list[int]] = {}
    for i in places:
        groups.setdefault(sequences[i].group_id, []).append(i)
    apart = [part for members in groups.values() for part in _cut(sequences, members, max_tokens, share=True)]
    return min(together, apart, key=lambda plan: sum(part.tokens for part in plan))


def common_prefix(sequences: Sequence[TrainingSequence]) -> int:
    """How many tokens they all begin with; what predicts the first trained token of any isn't among them."""
    limit = min(int(trained_places(s)[0]) for s in sequences) - 1
    if limit <= 0 or len(sequences) < 2:  # alone it would only be computed in two parts
        return 0
    rows = np.stack([tokens_of(s)[:limit] for s in sequences])
    differs = (rows != rows[0]).any(axis=0)
    return int(differs.argmax()) if differs.any() else limit


def _cut(sequences: Sequence[TrainingSequence], members: list[int], max_tokens: int, *, share: bool) -> list[Pass]:
    """Longest first, so that those of one pass are of like length."""
    prefix = common_prefix([sequences[i] for i in members]) if share else 0
    ordered = sorted(members, key=lambda i: -sequences[i].length)
    passes: list[Pass] = []
    while ordered:
        width = sequences[ordered[0]].length - prefix
        count = max(1, (max_tokens - prefix) // width)
        passes.append(Pass(tuple(ordered[:count]), prefix, width))
        ordered = ordered[count:]
    return passes
