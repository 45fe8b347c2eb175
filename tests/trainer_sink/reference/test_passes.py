"""How a step is cut into forward passes."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer_sink.reference.tiny import sequence
from trainer_sink.reference.passes import common_prefix, plan_passes, tokens_of, trained_places


def test_the_prefix_ends_before_what_predicts_the_first_trained_token() -> None:
    """Two equal prompts: the last prompt token predicts, so it isn't shared."""
    assert common_prefix([sequence([1, 2, 3], [4]), sequence([1, 2, 3], [5])]) == 2


def test_the_prefix_ends_where_prompts_differ() -> None:
    """One token in common."""
    assert common_prefix([sequence([1, 2, 3, 3], [4]), sequence([1, 9, 3, 3], [4])]) == 1


def test_response_tokens_before_the_first_trained_one_are_shared_too() -> None:
    """A trace may begin with context that another trace trains."""
    both = [sequence([1, 2], [3, 4, 5, 6], mask=[0, 0, 0, 1]) for _ in range(2)]
    assert common_prefix(both) == 4


def test_one_sequence_alone_shares_nothing() -> None:
    """It would only be computed in two parts."""
    assert common_prefix([sequence([1, 2, 3], [4])]) == 0


def test_the_first_token_of_all_is_never_trained() -> None:
    """Nothing predicts it."""
    assert trained_places(sequence([], [7, 8])).tolist() == [1]


def test_groups_share_their_own_prefix_where_that_is_cheaper() -> None:
    """Two groups with different prompts: one pass each, with the group's prompt once."""
    groups = [sequence([g] * 20, [5, 6], group=str(g), name=str(i)) for g in (1, 2) for i in range(3)]
    plan = plan_passes(groups, 1000)
    assert [(p.members, p.prefix) for p in plan] == [((0, 1, 2), 19), ((3, 4, 5), 19)]


def test_all_share_one_prefix_where_that_is_cheaper() -> None:
    """The same prompt everywhere: one pass."""
    groups = [sequence([1] * 20, [5, 6], group=str(g), name=str(i)) for g in (1, 2) for i in range(3)]
    (plan,) = plan_passes(groups, 1000)
    assert (plan.prefix, plan.width, plan.tokens) == (19, 3, 19 + 6 * 3)


def test_without_sharing_no_prefix_is_taken_out() -> None:
    """As an architecture needs whose layers can't keep one."""
    (plan,) = plan_passes([sequence([1, 2], [3]), sequence([1, 2], [4])], 1000, share=False)
    assert plan.prefix == 0


ids = st.lists(st.integers(0, 2), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(ids, ids, st.sampled_from("ab")), max_size=8), st.integers(1, 40), st.booleans())
def test_each_trained_sequence_is_in_one_pass_within_the_limit(rows: list, limit: int, share: bool) -> None:
    """Whatever comes, nothing is computed twice or left out, a prefix is one of all its members, and only a single sequence is too long."""
    sequences = [sequence(p, r, group=g) for p, r, g in rows]
    plan = plan_passes(sequences, limit, share=share)
    assert sorted(i for part in plan for i in part.members) == list(range(len(sequences)))
    for part in plan:
        members = [tokens_of(sequences[i]).tolist() for i in part.members]
        assert len({tuple(m[: part.prefix]) for m in members}) == 1
        assert max(len(m) for m in members) == part.prefix + part.width
        assert part.tokens <= limit or len(members) == 1
        assert all(trained_places(sequences[i])[0] > part.prefix for i in part.members)
