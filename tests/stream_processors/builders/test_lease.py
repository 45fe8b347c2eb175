"""Prompts from deltas: verified, never guessed."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from schemas import ids
from schemas.arrays import pack_ids
from schemas.records import CompletionRecord
from stream_processors.builders import build
from stream_processors.builders.lease import Lease
from stream_processors.builders.messages import Conversations
from tests.stream_processors.helpers import E, call, delivered, row_of


def delta(
    seq: int, parent: CompletionRecord, prefix: list[int], suffix: list[int], output: list[int]
) -> CompletionRecord:
    """A call whose record holds only what its parent's conversation lacks."""
    return call(
        seq,
        suffix,
        output,
        parent_id=parent.completion_id,
        prefix_len=len(prefix),
        prefix_digest=ids.digest(pack_ids(prefix)),
        prompt_len=len(prefix) + len(suffix),
    )


def test_deltas_resolve_through_a_chain() -> None:
    """Three calls, two of them deltas: the same traces as from whole prompts."""
    first = call(1, [1, 2], [10, E])
    second = delta(2, first, [1, 2, 10, E], [50], [20, E])
    third = delta(3, second, [1, 2, 10, E, 50, 20, E], [60], [30, E])
    built = build("prefix_merging", {}, delivered(third, first, second), "policy")
    assert [row_of(t) for t in built.traces] == [([1, 2], [10, E, 50, 20, E, 60, 30, E], "11011011")]


def test_a_prefix_may_end_inside_the_parents_reply() -> None:
    """A rewritten tail: the delta keeps what is common, and the call is a root of its own."""
    first = call(1, [1, 2], [10, 11, E])
    second = delta(2, first, [1, 2, 10], [E, 50], [20, E])
    (_, (prompt, _)) = Lease([first, second]).places()
    assert prompt is not None
    assert prompt.since(0) == pack_ids([1, 2, 10, E, 50])


@pytest.mark.parametrize("spoil", ["digest", "length", "parent", "count", "torn"])
def test_what_does_not_verify_is_unresolved(spoil: str) -> None:
    """A wrong digest, a prefix beyond the parent, a missing parent, a wrong count or a torn array: untrainable, no trace."""
    first = call(1, [1, 2], [10, E])
    second = delta(2, first, [1, 2, 10, E], [50], [20, E])
    spoilt = {
        "digest": replace(second, prefix_digest="0" * 64),
        "length": replace(second, prefix_len=5, prompt_len=6),
        "parent": replace(second, parent_id="nobody"),
        "count": replace(second, prompt_len=4),
        "torn": replace(second, suffix_ids=second.suffix_ids + b"\0"),
    }[spoil]
    third = delta(3, spoilt, [1, 2, 10, E, 50, 20, E], [60], [30, E])
    built = build("prefix_merging", {}, delivered(first, spoilt, third), "policy")
    assert built.counts.untrainable == {"prompt_unresolved": 2}
    assert [row_of(t) for t in built.traces] == [([1, 2], [10, E], "11")]


def test_who_claims_a_number_or_an_id_first_changes_nothing() -> None:
    """Two records under one number, two under one id, and deltas on each of them: the same places in every order."""
    first = call(1, [1, 2], [10, E])
    rival = replace(first, completion_id="rival", output_ids=pack_ids([11, E]))
    twin = replace(call(2, [1, 2, 3], [12, E]), completion_id=first.completion_id)
    children = [
        delta(3, first, [1, 2, 10, E], [50], [20, E]),
        delta(4, rival, [1, 2, 11, E], [50], [20, E]),
        delta(5, twin, [1, 2, 3, 12, E], [50], [20, E]),
    ]
    found = set()
    for order in itertools.permutations([first, rival, twin, *children]):
        places = Lease(order).places()
        found.add(tuple(None if end is None else end.since(0) for _, end in places))
    assert len(found) == 1


def test_messages_resolve_like_prompts() -> None:
    """`messages_prefix` messages of the parent's conversation, its reply included, then the record's own."""
    user, tool = {"role": "user", "content": "u"}, {"role": "tool", "content": "r"}
    first = call(1, [1], [10, E], messages=[user], text="a")
    second = replace(delta(2, first, [1, 10, E], [50], [20]), messages=[tool], messages_prefix=2)
    conversations = Conversations(Lease([second, first]).calls())
    assert conversations.messages(0) == [user]
    assert conversations.messages(1) == [user, {"role": "assistant", "content": "a"}, tool]
