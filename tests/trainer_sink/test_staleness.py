"""Lags of trained tokens: the order of versions, spans against the mask, sums over groups."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import arrays
from schemas.records import Trace, TurnSpan, VersionSpan
from tests.trainer_sink.scored import scored
from trainer_sink.staleness import UNVERSIONED, Staleness, VersionOrder, staleness_of


def spans(*parts: tuple[str, int, int]) -> list[VersionSpan]:
    return [VersionSpan(version=v, start=a, end=b) for v, a, b in parts]


def two_turns(first: list[VersionSpan], second: list[VersionSpan], *, is_second_trained: bool = True) -> Trace:
    """Three sampled tokens, two of the environment, three sampled ones."""
    mask = [1, 1, 1, 0, 0, *([1, 1, 1] if is_second_trained else [0, 0, 0])]
    return Trace(
        response_ids=arrays.pack_ids(range(8)),
        loss_mask=arrays.pack_mask(mask),
        logprobs=arrays.pack_logprobs([0.0] * 8),
        turns=[
            TurnSpan(start=0, end=3, is_trained=True, version_spans=first),
            TurnSpan(start=5, end=8, is_trained=is_second_trained, version_spans=second),
        ],
    )


@pytest.mark.parametrize(
    ("published", "version", "current", "lag"),
    [
        ([], "default", "", 0),
        (["1", "2", "3"], "3", "3", 0),
        (["1", "2", "3"], "1", "3", 2),
        (["1", "2", "9"], "2", "9", 1),  # counted in publications, not in numbers
        (["1", "2", "3"], "0", "3", 3),
        (["1", "2", "3"], "4", "3", 0),  # pushed, not yet published
        (["1", "2", "3"], "3", "4", 1),  # the trainer is ahead of the timeline
        ([], "5", "7", 2),
        (["a", "b", "c"], "a", "c", 2),
        (["a", "b", "c"], "c", "a", 0),
        (["a", "b", "c"], "default", "c", 3),  # older than all that were published
        (["a", "b"], "b", "mine", 1),
        (["a"], "", "a", None),
    ],
)
def test_a_versions_lag(published: list[str], version: str, current: str, lag: int | None) -> None:
    """By publications where both are on the timeline, by number where both are numbers, else older than everything."""
    assert VersionOrder(published).lag(version, current) == lag


@given(st.lists(st.integers(0, 50).map(str), unique=True, min_size=1), st.data())
def test_a_lag_is_never_negative_and_the_newest_has_none(published: list[str], data: st.DataObject) -> None:
    """Whatever was published in whatever order."""
    order = VersionOrder(published)
    version = data.draw(st.sampled_from([*published, "x", "51"]))
    lag = order.lag(version, order.newest)
    assert lag is not None
    assert lag >= 0
    assert order.lag(order.newest, order.newest) == 0


def test_a_reply_during_which_the_weights_changed_counts_by_token() -> None:
    """Two tokens of version 1 and one of 2 in the first reply, three of 3 in the second; the environment's tokens don't count."""
    one = scored("g", 0, 1, traces=[two_turns(spans(("1", 0, 2), ("2", 2, 3)), spans(("3", 0, 3)))])
    staleness = staleness_of([one], VersionOrder(["1", "2", "3"]), "")
    assert staleness.tokens_by_lag == {2: 2, 1: 1, 0: 3}
    assert staleness.mean == pytest.approx(5 / 6)
    assert (staleness.max, staleness.unversioned) == (2.0, 0)
    assert staleness.current == "3"


def test_untrained_replies_do_not_count() -> None:
    """A shared reply is trained in another trace; its age is that one's matter."""
    trace = two_turns(spans(("3", 0, 3)), spans(("1", 0, 3)), is_second_trained=False)
    assert staleness_of([scored("g", 0, 1, traces=[trace])], VersionOrder(["1", "2", "3"]), "").max == 0.0


def test_tokens_without_a_version_are_named() -> None:
    """An engine that doesn't say its version leaves nothing to compare."""
    one = scored("g", 0, 1, traces=[two_turns(spans(("2", 0, 3)), [])])
    staleness = staleness_of([one], VersionOrder(["1", "2"]), "2")
    assert staleness.tokens_by_lag == {0: 3, UNVERSIONED: 3}
    assert (staleness.unversioned, staleness.max, staleness.mean) == (3, 0.0, 0.0)


def test_before_anything_was_published_nothing_lags() -> None:
    """Also tokens without a version: there is nothing newer."""
    one = scored("g", 0, 1, traces=[two_turns([], spans(("default", 0, 3)))])
    assert staleness_of([one], VersionOrder(), "").tokens_by_lag == {0: 6}


def test_sessions_without_traces_have_no_age() -> None:
    """A failed session adds nothing."""
    failed = dataclasses.replace(scored("g", 0, 1), trajectory=None)
    assert staleness_of([failed], VersionOrder(["1"]), "1") == Staleness({}, "1")


def test_several_groups_are_weighed_by_their_tokens() -> None:
    """The mean over a step is over tokens, not over groups."""
    total = Staleness.of_all([Staleness({0: 30}, "4"), Staleness({3: 10}, "4")])
    assert (total.max, total.mean, total.current) == (3.0, 0.75, "4")
    assert (Staleness.of_all([]).max, Staleness.of_all([]).mean) == (0.0, 0.0)
