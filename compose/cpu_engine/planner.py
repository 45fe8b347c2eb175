"""Which tokens of which requests are computed in the next step."""

from __future__ import annotations

from compose.cpu_engine.model import Row
from compose.cpu_engine.prefix_cache import BLOCK_TOKENS, PrefixCache
from compose.cpu_engine.ragged import KeyValues
from compose.cpu_engine.sequence import Sequence


class Planner:
    """Chooses rows under two bounds: `max_running` rows, and `chunk_tokens` prompt tokens, per step."""

    def __init__(self, cache: PrefixCache, layer_count: int, *, max_running: int, chunk_tokens: int) -> None:
        self._cache = cache
        self._layer_count = layer_count
        self._max_running = max_running
        self._chunk_tokens = chunk_tokens

    def plan(self, active: list[Sequence], now: float) -> list[tuple[Sequence, Row]]:
        """Rows of the next step: one token for each running reply, then pieces of prompts within the token budget."""
        planned: list[tuple[Sequence, Row]] = []
        prompts: list[Sequence] = []
        for sequence in active:
            if sequence.pending or sequence.is_computed or (sequence.script is None and sequence.next_at > now):
                continue
            if sequence.storage is not None and sequence.storage.length == sequence.known_count - 1:
                if len(planned) < self._max_running:
                    planned.append((sequence, self._row(sequence, 1)))
            else:
                prompts.append(sequence)
        budget = self._chunk_tokens
        begun: set[tuple[int, ...]] = set()
        for sequence in prompts:
            if budget <= 0 or len(planned) >= self._max_running:
                break
            if sequence.storage is None:
                # Of prompts that begin alike one goes first: the others find its keys and values in the cache.
                opening = tuple(sequence.prompt_ids[:BLOCK_TOKENS])
                if opening in begun:
                    continue
                begun.add(opening)
                self._start(sequence)
            row = self._row(sequence, budget)
            budget -= len(row.ids)
            planned.append((sequence, row))
        return planned

    def _start(self, sequence: Sequence) -> None:
        # Not a script's future: the tokens to come must be computed, or there are no log-probabilities for them.
        found = self._cache.find(sequence.prompt_ids + sequence.output_ids)
        sequence.storage = KeyValues(self._layer_count, found, reserve=min(sequence.limits.max_new_tokens, 1024))
        if not sequence.output_ids:
            sequence.cached_tokens = min(found.length if found else 0, len(sequence.prompt_ids))

    def _row(self, sequence: Sequence, budget: int) -> Row:
        assert sequence.storage is not None
        begin = sequence.storage.length
        # A script's last token is never an input: nothing follows it.
        last = sequence.known_count if sequence.script is None else sequence.known_count - 1
        end = min(last, begin + budget)
        targets: list[int] = []
        if sequence.script is not None:
            # Output i is predicted at position len(prompt) + i - 1; those given out already are not asked for again.
            ready = len(sequence.prompt_ids) + len(sequence.output_ids) + len(sequence.pending) - 1
            targets = sequence.known(max(begin, ready) + 1, end + 1)
        return Row(
            storage=sequence.storage,
            ids=sequence.known(begin, end),
            rule=sequence.rule,
            targets=targets,
            sample=sequence.script is None and end == last,
            generator=sequence.generator,
            top=sequence.top,
        )
