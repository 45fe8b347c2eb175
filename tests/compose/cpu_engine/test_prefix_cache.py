from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compose.cpu_engine.prefix_cache import BLOCK_TOKENS, PrefixCache
from compose.cpu_engine.ragged import KeyValuePrefix


def stored(ids: list[int]) -> KeyValuePrefix:
    """A prefix whose keys are the ids themselves, so that a wrong match is visible."""
    keys = torch.tensor(ids, dtype=torch.float32).reshape(1, -1, 1)
    return KeyValuePrefix(((keys, keys),), len(ids))


def found_ids(cache: PrefixCache, ids: list[int]) -> list[int]:
    match = cache.find(ids)
    return [] if match is None else [int(i) for i in match.layers[0][0].flatten().tolist()]


def test_the_longest_common_prefix_is_found_to_the_token() -> None:
    """The index works in blocks, the match is exact."""
    cache = PrefixCache(10_000)
    first = list(range(1000))
    cache.add(first, stored(first))
    wanted = [*first[:777], 5, 5, 5]
    assert found_ids(cache, wanted) == first[:777]


def test_the_last_token_is_never_taken_from_the_cache() -> None:
    """A prompt that is stored whole still computes its last token: its logits are needed."""
    cache = PrefixCache(10_000)
    ids = list(range(200))
    cache.add(ids, stored(ids))
    assert found_ids(cache, ids) == ids[:-1]


def test_a_longer_sequence_replaces_its_own_beginning() -> None:
    """The turns of one conversation take the room of the last one, not of all."""
    cache = PrefixCache(10_000)
    for length in (100, 300, 700):
        cache.add(list(range(length)), stored(list(range(length))))
    assert cache.tokens == 700
    cache.add(list(range(300)), stored(list(range(300))))
    assert cache.tokens == 700


def test_the_bound_drops_what_was_not_used_longest() -> None:
    """Beyond the bound the least recently used sequence goes."""
    cache = PrefixCache(450)
    one, two, three = ([base] * 200 for base in (1, 2, 3))
    cache.add(one, stored(one))
    cache.add(two, stored(two))
    assert found_ids(cache, [*one, 9]) == one
    cache.add(three, stored(three))
    assert cache.tokens == 400
    assert found_ids(cache, [*two, 9]) == []
    assert found_ids(cache, [*one, 9]) == one
    assert found_ids(cache, [*three, 9]) == three


def test_sequences_below_a_block_or_above_the_bound_are_not_kept() -> None:
    """A tiny prefix isn't worth a copy, and one that can't fit must not empty the cache."""
    cache = PrefixCache(300)
    kept = [1] * 200
    cache.add(kept, stored(kept))
    cache.add([2] * 10, stored([2] * 10))
    cache.add([3] * 301, stored([3] * 301))
    assert cache.tokens == 200


def test_clear_forgets() -> None:
    """After a flush nothing matches."""
    cache = PrefixCache(1000)
    ids = list(range(300))
    cache.add(ids, stored(ids))
    cache.clear()
    assert found_ids(cache, [*ids, 1]) == []
    assert cache.tokens == 0


# Sequences made of a few long runs: random ones would never share a block.
runs = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 2 * BLOCK_TOKENS)), min_size=1, max_size=4).map(
    lambda pieces: [value for value, count in pieces for _ in range(count)]
)


@settings(max_examples=60, deadline=None)
@given(added=st.lists(runs, max_size=8), wanted=runs)
def test_a_match_is_a_true_prefix_and_at_least_the_best_in_blocks(added: list[list[int]], wanted: list[int]) -> None:
    """Whatever was added (without eviction), the match is a prefix of what is asked and no shorter than the best's blocks."""
    cache = PrefixCache(1_000_000)
    for ids in added:
        cache.add(ids, stored(ids))
    match = found_ids(cache, wanted)
    assert match == wanted[: len(match)]
    assert len(match) < len(wanted)
    best = 0
    for ids in added:
        common = next(
            (i for i, (a, b) in enumerate(zip(ids, wanted, strict=False)) if a != b), min(len(ids), len(wanted))
        )
        best = max(best, common // BLOCK_TOKENS * BLOCK_TOKENS)
    assert len(match) >= min(best, len(wanted) - 1)
