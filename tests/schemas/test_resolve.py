"""Delta records become whole prompts and conversations again, in whatever order they come."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas import arrays, ids
from schemas.records import CompletionRecord
from schemas.resolve import (
    MISCOUNTED,
    PARENT_MISSING,
    PARENT_NOT_EARLIER,
    PARENT_UNRESOLVED,
    PREFIX_MISMATCH,
    TORN,
    Resolver,
    reply_message,
    resolve,
)

LEASE = "lease"


def full(seq: int, prompt: list[int], output: list[int], messages: list[Any], **changes: Any) -> CompletionRecord:
    """A record that holds everything itself."""
    return CompletionRecord(
        session_id="s",
        lease_id=LEASE,
        call_seq=seq,
        completion_id=ids.completion_id(LEASE, 1, seq),
        suffix_ids=arrays.pack_ids(prompt),
        output_ids=arrays.pack_ids(output),
        prompt_len=len(prompt),
        messages=messages,
        text=f"answer {seq}",
        **changes,
    )


def delta(record: CompletionRecord, parent: CompletionRecord, parent_reach: list[int], known: int) -> CompletionRecord:
    """The same record as a delta on its parent, whose conversation has `known` messages of it."""
    n = len(parent_reach)
    return replace(
        record,
        parent_id=parent.completion_id,
        prefix_len=n,
        prefix_digest=ids.digest(arrays.pack_ids(parent_reach)),
        suffix_ids=record.suffix_ids[4 * n :],
        messages_prefix=known,
        messages=record.messages[known:],
    )


USER = {"role": "user", "content": "go"}
MORE = {"role": "user", "content": "on"}
ONE = full(1, [1, 2], [3, 99], [USER])
TWO_FULL = full(2, [1, 2, 3, 99, 4], [5], [USER, reply_message(ONE), MORE])
TWO = delta(TWO_FULL, ONE, [1, 2, 3, 99], 2)


def test_a_delta_is_what_the_full_record_was() -> None:
    """Prompt, messages and reach come out as if the record had held them all."""
    call = resolve([ONE, TWO]).calls[TWO.completion_id]
    assert call.problem == ""
    assert call.prompt() == TWO_FULL.suffix_ids
    assert call.messages() == TWO_FULL.messages
    assert (call.prompt_len, call.reach_len) == (5, 6)
    assert call.reach_digest() == ids.digest(TWO_FULL.suffix_ids + TWO_FULL.output_ids)
    assert call.conversation()[-1] == {"role": "assistant", "content": "answer 2"}


def test_a_child_that_comes_first_waits() -> None:
    """Nothing is resolved before the parent is there; then both are, and a repeat gives nothing."""
    resolver = Resolver()
    assert resolver.add(TWO) == []
    assert resolver.add(TWO) == []
    assert [c.record.call_seq for c in resolver.add(ONE)] == [1, 2]
    assert resolver.add(TWO) == []
    assert list(resolver.waiting()) == []


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ([TWO], PARENT_MISSING),
        ([ONE, replace(TWO, prefix_digest="0" * 64)], PREFIX_MISMATCH),
        ([ONE, replace(TWO, prefix_len=9)], PREFIX_MISMATCH),
        ([replace(ONE, call_seq=3), TWO], PARENT_NOT_EARLIER),
        ([replace(ONE, lease_id="another"), TWO], PARENT_NOT_EARLIER),
        ([ONE, replace(TWO, prompt_len=4)], MISCOUNTED),
        ([ONE, replace(TWO, suffix_ids=b"123")], TORN),
        ([replace(ONE, output_ids=b"1"), TWO], PARENT_UNRESOLVED),
    ],
)
def test_what_does_not_check_is_named(records: list[CompletionRecord], problem: str) -> None:
    """A prompt is never guessed: the call says why it has none, and asking for it raises."""
    call = resolve(records).calls[TWO.completion_id]
    assert call.problem == problem
    with pytest.raises(ValueError, match=problem):
        call.prompt()


def test_a_prefix_may_end_inside_the_parent() -> None:
    """A prefix shorter than the parent's reach is cut there, also above a grandparent's end."""
    part = replace(
        full(3, [1, 2, 3, 7], [8], [USER]),
        parent_id=TWO.completion_id,
        prefix_len=3,
        prefix_digest=ids.digest(arrays.pack_ids([1, 2, 3])),
        suffix_ids=arrays.pack_ids([7]),
    )
    child = delta(full(4, [1, 2, 3, 7, 8, 9], [10], []), part, [1, 2, 3, 7, 8], 0)
    calls = resolve([ONE, TWO, part, child]).calls
    assert calls[part.completion_id].prompt() == arrays.pack_ids([1, 2, 3, 7])
    assert calls[child.completion_id].prompt() == arrays.pack_ids([1, 2, 3, 7, 8, 9])


def test_tools_stand_once_in_a_lease() -> None:
    """A record that only repeats the digest has the tools of the one that brought them; other leases don't share them."""
    tools = [{"type": "function", "function": {"name": "ls"}}]
    first = replace(ONE, tools=tools, tools_digest="d")
    again = replace(TWO, tools=[], tools_digest="d")
    resolver = resolve([again, first])
    assert resolver.tools(again) == tools
    assert resolver.tools(replace(again, lease_id="other")) == []


def test_a_reply_with_calls_is_an_openai_message() -> None:
    """Arguments stay the sampled text; spans stay behind."""
    record = replace(
        ONE, reasoning="hm", tool_calls=[{"id": "c", "name": "ls", "arguments": '{"p": 1}', "span": [0, 3]}]
    )
    assert reply_message(record) == {
        "role": "assistant",
        "content": "answer 1",
        "reasoning_content": "hm",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "ls", "arguments": '{"p": 1}'}}],
    }


def test_chains_may_be_long() -> None:
    """A thousand turns, without a checkpoint, resolve without recursion."""
    records = [ONE]
    reach = [1, 2, 3, 99]
    for seq in range(2, 1500):
        whole = full(seq, [*reach, seq], [seq, 99], [])
        records.append(replace(delta(whole, records[-1], reach, 2 * seq - 2), messages=[MORE]))
        reach = [*reach, seq, seq, 99]
    last = resolve(reversed(records)).calls[records[-1].completion_id]
    assert last.prompt() + last.record.output_ids == arrays.pack_ids(reach)
    assert len(last.messages()) == 2 * 1499 - 1


@st.composite
def session_trees(draw: st.DrawFn) -> list[tuple[int, list[int], list[int], int]]:
    """Calls as (parent or -1, new prompt ids, output ids, how many tokens of the parent's output are left out)."""
    tokens = st.lists(st.integers(0, 2**31 - 1), max_size=5)
    count = draw(st.integers(1, 12))
    return [(draw(st.integers(-1, i - 1)), draw(tokens), draw(tokens), draw(st.integers(0, 2))) for i in range(count)]


@settings(max_examples=200, deadline=None)
@given(session_trees(), st.randoms(use_true_random=False))
def test_deltas_resolve_to_the_full_records(
    tree: list[tuple[int, list[int], list[int], int]], rng: random.Random
) -> None:
    """For any tree of calls, delta records in any order, repeated, give the prompts and messages of the full ones."""
    wholes: list[CompletionRecord] = []
    deltas: list[CompletionRecord] = []
    for i, (parent, new, output, cut) in enumerate(tree):
        user = {"role": "user", "content": f"u{i}"}
        if parent < 0:
            whole = full(i + 1, new, output, [user])
            deltas.append(whole)
        else:
            base = wholes[parent]
            reach = arrays.unpack_ids(base.suffix_ids + base.output_ids).tolist()
            reach = reach[: len(reach) - min(cut, len(base.output_ids) // 4)]
            whole = full(i + 1, [*reach, *new], output, [*base.messages, reply_message(base), user])
            deltas.append(delta(whole, base, reach, len(base.messages) + 1) if reach else whole)
        wholes.append(whole)
    shuffled = [*deltas, rng.choice(deltas)]
    rng.shuffle(shuffled)
    resolver = resolve(shuffled)
    for whole in wholes:
        call = resolver.calls[whole.completion_id]
        assert call.problem == ""
        assert call.prompt() == whole.suffix_ids
        assert call.messages() == whole.messages
        assert call.reach_digest() == ids.digest(whole.suffix_ids + whole.output_ids)


def test_all_orders_of_a_small_tree() -> None:
    """Four calls, two branches: every order resolves the same."""
    three = delta(full(3, [1, 2, 3, 99, 6], [7], [USER, reply_message(ONE), USER]), ONE, [1, 2, 3, 99], 2)
    four = delta(full(4, [1, 2, 3, 99, 4, 5, 8], [9], []), TWO, [1, 2, 3, 99, 4, 5], 4)
    want = {c.record.completion_id: c.prompt() for c in resolve([ONE, TWO, three, four]).calls.values()}
    for order in itertools.permutations([ONE, TWO, three, four]):
        assert {c.record.completion_id: c.prompt() for c in resolve(order).calls.values()} == want
