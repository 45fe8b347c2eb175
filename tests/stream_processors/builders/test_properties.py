"""What must hold for any session: exactness, one state per call, and that only the set of facts matters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.arrays import unpack_ids, unpack_logprobs, unpack_mask
from schemas.codec import encode
from schemas.records import CompletionRecord, Trajectory
from schemas.resolve import resolve
from stream_processors.builders import Built, Lease, build, settle
from stream_processors.builders.trie import TokenTrie
from tests.stream_processors.builders.session_trees import Session, sessions

SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])

BUILDERS = pytest.mark.parametrize(
    ("name", "options"),
    [("prefix_merging", {}), ("prefix_merging", {"drift": "splice"}), ("per_request", {})],
    ids=["split", "splice", "per_request"],
)


def as_bytes(built: Built) -> bytes:
    """Everything a builder gives, as one value."""
    return encode(Trajectory(traces=built.traces, calls=built.calls, counts=built.counts)).value


def prompt_of(record: CompletionRecord) -> list[int]:
    return unpack_ids(record.suffix_ids).tolist()


@SETTINGS
@given(sessions())
def test_every_token_of_a_trace_is_what_the_engine_saw(session: Session) -> None:
    """G1: in front of each turn stands that call's prompt, the turn is what it sampled, with its log-probabilities."""
    records = session.records()
    for trace in build("prefix_merging", {}, session.deltas, "policy").traces:
        prompt, response = unpack_ids(trace.prompt_ids).tolist(), unpack_ids(trace.response_ids).tolist()
        mask, logprobs = unpack_mask(trace.loss_mask), unpack_logprobs(trace.logprobs)
        assert len(response) == len(mask) == len(logprobs)
        expected = [0] * len(response)
        for turn in trace.turns:
            record = records[turn.completion_id]
            assert [*prompt, *response[: turn.start]] == prompt_of(record)
            assert response[turn.start : turn.end] == unpack_ids(record.output_ids).tolist()
            assert turn.fidelity == "exact"
            if turn.is_trained:
                expected[turn.start : turn.end] = [1] * (turn.end - turn.start)
                assert (logprobs[turn.start : turn.end] == unpack_logprobs(record.logprobs)).all()
        assert mask.tolist() == expected
        assert not logprobs[mask == 0].any()
        assert trace.turns[-1].is_trained
        assert not trace.is_off_context


@SETTINGS
@given(sessions())
def test_what_is_spliced_says_so(session: Session) -> None:
    """A turn of a spliced trace is either exact, or it and its trace are marked; sampled ids are never anything else."""
    records = session.records()
    for trace in build("prefix_merging", {"drift": "splice"}, session.deltas, "policy").traces:
        prompt, response = unpack_ids(trace.prompt_ids).tolist(), unpack_ids(trace.response_ids).tolist()
        for turn in trace.turns:
            record = records[turn.completion_id]
            is_exact = [*prompt, *response[: turn.start]] == prompt_of(record)
            assert turn.fidelity == "off_context" or is_exact
            assert trace.is_off_context or is_exact
            assert response[turn.start : turn.end] == unpack_ids(record.output_ids).tolist()


@BUILDERS
@SETTINGS
@given(sessions())
def test_every_call_ends_in_one_state(name: str, options: dict[str, str], session: Session) -> None:
    """G2 and G3: one state per call, the sums add up, and a reply is trained in one trace at most."""
    built = build(name, options, session.deltas, "policy")
    records = session.records()
    assert [c.completion_id for c in built.calls] == sorted(
        records, key=lambda k: (records[k].writer, records[k].call_seq)
    )
    trained_in = [(turn.completion_id, t.index) for t in built.traces for turn in t.turns if turn.is_trained]
    assert sorted(trained_in) == sorted((c.completion_id, c.trace) for c in built.calls if c.trace >= 0)
    assert len(trained_in) == len({completion for completion, _ in trained_in}) == built.counts.trained
    counts = built.counts
    assert counts.calls == counts.trained + counts.context + sum(counts.untrainable.values()) == len(records)
    assert counts.trainable_tokens == sum(len(records[c].output_ids) // 4 for c, _ in trained_in)
    assert all(bool(c.reason) == (c.disposition == "untrainable") for c in built.calls)
    assert all(c.disposition != "UNKNOWN" for c in built.calls)


@BUILDERS
@SETTINGS
@given(sessions(), st.data())
def test_grown_fact_by_fact_in_any_order_equals_the_batch(
    name: str, options: dict[str, str], session: Session, data: st.DataObject
) -> None:
    """G5: any order of arrival, anything repeated, looked at in between: the bytes of the batch in canonical order."""
    expected = as_bytes(build(name, options, session.deltas, "policy"))
    mixed = data.draw(
        st.permutations(session.deltas + data.draw(st.lists(st.sampled_from(session.deltas), max_size=4)))
    )
    lease = Lease()
    for fact in mixed:
        lease.add(fact)
        if data.draw(st.booleans()):
            settle(name, options, lease, "policy")
    assert as_bytes(settle(name, options, lease, "policy")) == expected


@BUILDERS
@SETTINGS
@given(sessions())
def test_deltas_build_what_whole_prompts_build(name: str, options: dict[str, str], session: Session) -> None:
    """The same calls with whole prompts and messages give the same traces, states and sums.

    The parent's name is the one thing that a delta says beyond its content: it tells twins apart.
    """
    parents = {f.completion_id: f.parent_id for f in session.deltas if isinstance(f, CompletionRecord)}
    whole = [
        replace(f, parent_id=parents[f.completion_id]) if isinstance(f, CompletionRecord) else f for f in session.whole
    ]
    assert as_bytes(build(name, options, session.deltas, "policy")) == as_bytes(build(name, options, whole, "policy"))


@SETTINGS
@given(sessions())
def test_the_lease_and_the_resolver_agree(session: Session) -> None:
    """Two ways from deltas to prompts, one for growing and one for reading: the same ids."""
    resolver = resolve(f for f in session.deltas if isinstance(f, CompletionRecord))
    lease = Lease(session.deltas)
    for one, (prompt, end) in zip(lease.calls(), lease.places(), strict=True):
        assert prompt is not None
        assert end is not None
        resolved = resolver.calls[one.record.completion_id]
        assert prompt.since(0) == resolved.prompt()
        assert end.digest() == resolved.reach_digest()


@SETTINGS
@given(sessions(), st.data())
def test_a_lost_record_costs_itself_and_its_deltas_only(session: Session, data: st.DataObject) -> None:
    """Without one record the others are still exact, each in one state; deltas on the lost one are `prompt_unresolved`."""
    records = [f for f in session.deltas if isinstance(f, CompletionRecord)]
    lost = data.draw(st.sampled_from(records))
    left = [f for f in session.deltas if f is not lost]
    built = build("prefix_merging", {}, left, "policy")
    whole = session.records()
    assert built.counts.calls == len(records) - 1
    orphans = {r.completion_id for r in records if r.parent_id == lost.completion_id and r.prefix_len}
    states = {c.completion_id: c.reason for c in built.calls}
    for completion_id in orphans - {lost.completion_id}:
        assert states[completion_id] != ""
    for trace in built.traces:
        prompt, response = unpack_ids(trace.prompt_ids).tolist(), unpack_ids(trace.response_ids).tolist()
        for turn in trace.turns:
            assert [*prompt, *response[: turn.start]] == prompt_of(whole[turn.completion_id])


@SETTINGS
@given(st.lists(st.lists(st.integers(-1, 2), max_size=6), max_size=12), st.data())
def test_a_tree_of_tokens_holds_every_sequence(sequences: list[list[int]], data: st.DataObject) -> None:
    """Inserted in any order and in any pieces, each place spells its sequence, and equal sequences are one place."""
    trie = TokenTrie()
    places = {}
    for ids in data.draw(st.permutations(sequences)):
        packed = b"".join(i.to_bytes(4, "little", signed=True) for i in ids)
        cut = 4 * data.draw(st.integers(0, len(ids)))
        place = trie.insert(trie.insert(trie.root, packed[:cut]), packed[cut:])
        assert places.setdefault(packed, place) is place
        depth = 4 * data.draw(st.integers(0, len(ids)))
        upper = trie.at_depth(place, depth)
        assert place.has_above(upper)
        assert (upper.depth, place.since(depth)) == (depth, packed[depth:])
    for packed, place in places.items():
        assert place.since(0) == packed
        assert place.is_negative == (
            -1 in [int.from_bytes(packed[n : n + 4], "little", signed=True) for n in range(0, len(packed), 4)]
        )
        assert all(place.has_above(other) == packed.startswith(start) for start, other in places.items())
