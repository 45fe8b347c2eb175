"""The three rules of the merge bench agree where they must, and the other two are what they claim to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.context import Bench
from tests.bench.errors import BenchError
from tests.bench.merge import _require_equal, make_session, measure, ours
from tests.bench.merge_rules import PlainCall, Row, exact_prefix, published

E = 99


def call(prompt: list[int], response: list[int], finish: str = "stop") -> PlainCall:
    return PlainCall(prompt, response, [-0.1] * len(response), finish)


def rows(found: list[Row]) -> list[tuple[list[int], list[int], str]]:
    return [(row.prompt, row.response, "".join(map(str, row.mask))) for row in found]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([call([1, 2, 3], [10, 11, E]), call([1, 2, 3, 10, 11, E, 50, 51], [20, 21, E])], [([10, 11, E, 50, 51, 20, 21, E], "11100111")]),
        ([call([1, 2], [10, 11, E]), call([1, 2, 12, E, 50], [20, E])], [([10, 11, E, 50, 20, E], "111011")]),
        ([call([1, 2], [10, 11], "length"), call([1, 2, 10, 11, E, 50], [20, E])], [([10, 11, E, 50, 20, E], "110011")]),
        ([call([1, 2], [10], "length"), call([1, 2, 10, E, 50], [20], "length")], [([10], "1")]),
        ([call([1, 2], [10, E]), call([1, 2], [11, E]), call([1, 2, 11, E, 50], [20, E])], [([10, E], "11")]),
        ([call([1, 2], [10, 40, E]), call([1, 2, 10, E, 5, 6, 40, E, 50], [20, E])], [([10, 40, E, 5, 6, 40, E, 50, 20, E], "1110000011")]),
    ],
    ids=["V1", "V2", "V3", "V3b", "V4", "V8"],
)  # fmt: skip
def test_the_published_rule_has_its_golden_vectors(
    calls: list[PlainCall], expected: list[tuple[list[int], str]]
) -> None:
    """Its strengths and its losses: what is measured beside ours is the rule as it was published."""
    assert [(response, mask) for _, response, mask in rows(published(calls))] == expected


def test_the_plain_rule_joins_exact_continuations_only() -> None:
    """A fork and another conversation are rows of their own."""
    found = exact_prefix([call([1], [2]), call([7], [8]), call([1, 2, 3], [4]), call([1, 9], [5])])
    assert rows(found) == [([1], [2, 3, 4], "101"), ([7], [8], "1"), ([1, 9], [5], "1")]


def test_all_three_agree_on_an_append_only_conversation() -> None:
    """And a difference is an error, not a number."""
    session = make_session(6, 30)
    _require_equal(ours(session), published(session.whole), exact_prefix(session.whole))
    with pytest.raises(BenchError, match="don't agree"):
        _require_equal(ours(session), published(make_session(6, 30, seed=1).whole))


async def test_it_measures(tmp_path: Path) -> None:
    """A quick run gives every metric, with its baseline."""
    metrics = {m.name: m for m in await measure(Bench(tmp_path, quick=True, say=lambda _: None))}
    assert set(metrics) == {
        "merge_50x600_tokens_per_s",
        "merge_50x600_tokens_per_s_beside_exact_prefix",
        "merge_200x2000_tokens_per_s",
        "merge_200x2000_tokens_per_s_beside_exact_prefix",
        "session_bytes_51_turns",
        "session_prompt_ids_51_turns",
        "session_bytes_51_turns_per_call",
    }
    assert all(m.ratio for name, m in metrics.items() if not name.endswith("per_call"))
