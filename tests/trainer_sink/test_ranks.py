"""Ranks of one trainer: partitions by a rule, or groups dealt out."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer_sink.scored import trace, whole
from trainer_sink.groups import Group, GroupAssembler, Source
from trainer_sink.ranks import deal, partitions_of, trained_tokens


def group(name: str, tokens: int) -> Group:
    assembler = GroupAssembler("me")
    (one,) = whole(name, 1, traces=[trace(response=range(tokens + 1))])
    found = assembler.add(one, Source(0, 0))
    assert found is not None
    return found


@given(st.integers(1, 64), st.data())
def test_every_partition_has_exactly_one_rank(count: int, data: st.DataObject) -> None:
    """And every rank has some, within one of each other."""
    world = data.draw(st.integers(1, count))
    shares = [partitions_of(rank, world, count) for rank in range(world)]
    assert sorted(n for share in shares for n in share) == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("rank", "world", "message"), [(2, 2, "isn't one of"), (-1, 2, "isn't one of"), (0, 9, "deal")]
)
def test_a_rank_that_would_read_nothing_is_refused(rank: int, world: int, message: str) -> None:
    """It would wait for ever."""
    with pytest.raises(ValueError, match=message):
        partitions_of(rank, world, 8)


def test_groups_are_dealt_evenly_by_tokens_and_alike_everywhere() -> None:
    """The largest first, to the rank with the least; the order in which they came doesn't matter."""
    groups = [group(f"g{n}", tokens) for n, tokens in enumerate((50, 30, 20, 10, 10))]
    hands = deal(groups, 2)
    assert [sum(map(trained_tokens, hand)) for hand in hands] == [60, 60]
    shuffled = random.Random(1).sample(groups, len(groups))
    assert [[g.group_id for g in hand] for hand in deal(shuffled, 2)] == [[g.group_id for g in hand] for hand in hands]
    assert [len(hand) for hand in deal(groups[:1], 3)] == [1, 0, 0]
    with pytest.raises(ValueError, match="world_size"):
        deal(groups, 0)
