"""The builder with one trace per call."""

from __future__ import annotations

import pytest

from stream_processors.builders import UnknownBuilderError, build
from tests.stream_processors.helpers import E, call, delivered, delivery, row_of


def test_each_trainable_call_is_a_trace() -> None:
    """Nothing is joined: the second call's prompt holds the first reply as plain context."""
    facts = delivered(call(1, [1, 2], [10, E]), call(2, [1, 2, 10, E, 50], [20, E]))
    built = build("per_request", {}, facts, "policy")
    assert [row_of(t) for t in built.traces] == [([1, 2], [10, E], "11"), ([1, 2, 10, E, 50], [20, E], "11")]
    assert [c.trace for c in built.calls] == [0, 1]


def test_untrainable_calls_are_counted_not_traced() -> None:
    """The same verdicts as in merging, with the same reasons."""
    facts = [call(1, [1], [10, E]), delivery(1, delivered=False), *delivered(call(2, [5], [11], logprobs=[]))]
    built = build("per_request", {}, facts, "policy")
    assert built.traces == []
    assert built.counts.untrainable == {"logprob_length": 1, "undelivered": 1}


@pytest.mark.parametrize(("name", "options"), [("nonsense", {}), ("per_request", {"drift": "splice"})])
def test_what_it_does_not_know_it_refuses(name: str, options: dict[str, str]) -> None:
    """A builder or an option that would be ignored is an error that names what there is."""
    with pytest.raises(UnknownBuilderError, match=r"prefix_merging|drift='split'"):
        build(name, options, [], "policy")
