"""The default builder: golden vectors, the merge cases, and what must hold for any set of calls."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from schemas.codec import encode
from schemas.records import CompletionDelivery, CompletionRecord, CompletionState, Trajectory, VersionSpan
from stream_processors.builders import Built, build
from tests.stream_processors.helpers import E, call, delivered, delivery, logprobs_of, row_of

# The toy setting: role headers 1 system, 2 user, 3 assistant, 4 tool; 99 ends a message.
P1 = [1, 10, 11, 99, 2, 20, 21, 99, 3]
A, B, C, X = [51, 52, 99], [53, 54, 99], [55, 56, 99], [57, 58, 99]
R = [4, 41, 99, 3]
V = [2, 22, 99, 3]


def merge(*facts: CompletionRecord | CompletionDelivery) -> Built:
    return build("prefix_merging", {}, facts, "policy")


def rows(built: Built) -> list[tuple[list[int], list[int], str]]:
    return [row_of(t) for t in built.traces]


def reasons(built: Built) -> dict[int, str]:
    """call_seq → state or reason."""
    return {c.call_seq: c.reason or c.disposition.value for c in built.calls}


def as_bytes(built: Built) -> bytes:
    """Everything a builder gives, as one value."""
    record = Trajectory(traces=built.traces, calls=built.calls, counts=built.counts)
    return encode(record).value


# -- golden vectors of the published system; where it loses or mixes, ours must not ------------------------------------


def test_v1_two_turns_are_one_row() -> None:
    """V1: the reply and what the harness added stand in one row, the addition with mask 0 and no log-probability."""
    built = merge(*delivered(call(1, [1, 2, 3], [10, 11, E]), call(2, [1, 2, 3, 10, 11, E, 50, 51], [20, 21, E])))
    assert rows(built) == [([1, 2, 3], [10, 11, E, 50, 51, 20, 21, E], "11100111")]
    assert logprobs_of(built.traces[0]) == [-0.1, -0.11, -0.99, 0.0, 0.0, -0.2, -0.21, -0.99]
    assert [(t.start, t.end) for t in built.traces[0].turns] == [(0, 3), (5, 8)]


def test_v2_a_retokenised_body_begins_a_new_row() -> None:
    """V2: the published rule puts sampled tokens in front of a reply that never saw them; here it is two rows."""
    built = merge(*delivered(call(1, [1, 2], [10, 11, E]), call(2, [1, 2, 12, E, 50], [20, E])))
    assert rows(built) == [([1, 2], [10, 11, E], "111"), ([1, 2, 12, E, 50], [20, E], "11")]


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_v3_a_truncated_reply_goes_on(finish: str) -> None:
    """V3 and V3b: the canonical end of a turn that was cut by length is interstitial, whatever ended the other turn."""
    built = merge(
        *delivered(
            call(1, [1, 2], [10, 11], finish_reason="length"),
            call(2, [1, 2, 10, 11, E, 50], [20, E], finish_reason=finish),
        )
    )
    assert rows(built) == [([1, 2], [10, 11, E, 50, 20, E], "110011")]


def test_v4_a_retry_trains_the_attempt_that_went_on_and_drops_nothing() -> None:
    """V4: the published rule keeps 1 of 4 and trains the discarded attempt; here the chain follows the one that was used."""
    first = call(1, [1, 2], [10, E], request_digest="same")
    second = call(2, [1, 2], [11, E], request_digest="same")
    third = call(3, [1, 2, 11, E, 50], [20, E])
    fourth = call(4, [1, 2, 11, E, 50, 20, E, 60], [30, E])
    built = merge(first, delivery(1, delivered=False), *delivered(second, third, fourth))
    assert rows(built) == [([1, 2], [11, E, 50, 20, E, 60, 30, E], "11011011")]
    assert reasons(built) == {1: "superseded", 2: "trained", 3: "trained", 4: "trained"}


def test_v5_an_interleaved_sub_agent_has_its_own_row() -> None:
    """V5: two conversations that alternate are two whole rows."""
    built = merge(
        *delivered(
            call(1, [1, 2], [10, E]),
            call(2, [7, 8], [30, E]),
            call(3, [1, 2, 10, E, 5], [11, E]),
            call(4, [7, 8, 30, E, 6], [31, E]),
        )
    )
    assert rows(built) == [([1, 2], [10, E, 5, 11, E], "11011"), ([7, 8], [30, E, 6, 31, E], "11011")]
    assert [t.branch for t in built.traces] == ["main", "sub-agent"]


def test_v6_compaction_is_a_second_row() -> None:
    """V6: a replaced history starts anew and goes on from there."""
    built = merge(
        *delivered(
            call(1, [1, 2], [10, E]),
            call(2, [1, 2, 10, E, 5], [11, E]),
            call(3, [1, 60], [12, E]),
            call(4, [1, 60, 12, E, 6], [13, E]),
        )
    )
    assert rows(built) == [([1, 2], [10, E, 5, 11, E], "11011"), ([1, 60], [12, E, 6, 13, E], "11011")]


def test_v7_identical_siblings_are_two_whole_rows() -> None:
    """V7: sub-agents with the same prompt aren't one chain; the published rule lost two of four calls."""
    built = merge(
        *delivered(
            call(1, [1, 2], [10, E], request_digest="same"),
            call(2, [1, 2], [11, E], request_digest="same"),
            call(3, [1, 2, 10, E, 5], [12, E]),
            call(4, [1, 2, 11, E, 5], [13, E]),
        )
    )
    # The one that goes on longest is the main line; both are whole.
    assert sorted(rows(built)) == [([1, 2], [10, E, 5, 12, E], "11011"), ([1, 2], [11, E, 5, 13, E], "11011")]
    assert built.counts.trained == 4


def test_v8_a_reply_split_by_the_harness_is_not_repeated_in_a_row() -> None:
    """V8: text and tool call sent back as two messages; the published row holds the tool call twice."""
    built = merge(*delivered(call(1, [1, 2], [10, 40, E]), call(2, [1, 2, 10, E, 5, 6, 40, E, 50], [20, E])))
    assert rows(built) == [([1, 2], [10, 40, E], "111"), ([1, 2, 10, E, 5, 6, 40, E, 50], [20, E], "11")]


def test_v9_a_fork_trains_the_shared_turn_once() -> None:
    """V9: both branches hold the first turn, one of them with mask 1."""
    built = merge(*delivered(call(1, [1], [10, E]), call(2, [1, 10, E, 5], [11, E]), call(3, [1, 10, E, 6], [12, E])))
    assert rows(built) == [([1], [10, E, 6, 12, E], "11011"), ([1], [10, E, 5, 11, E], "00011")]
    assert [t.parent_trace for t in built.traces] == [-1, 0]
    assert built.counts.trained == 3


def test_v10_a_stop_string_truncates_nothing() -> None:
    """V10: no end-of-turn token is guessed, so later turns aren't lost."""
    built = merge(
        *delivered(
            call(1, [1, 2], [10, 77]),
            call(2, [1, 2, 10, 77, 50], [20, E]),
            call(3, [1, 2, 10, 77, 50, 20, E, 51], [21, E]),
        )
    )
    assert rows(built) == [([1, 2], [10, 77, 50, 20, E, 51, 21, E], "11011011")]


def test_v11_a_rewritten_reply_is_seen() -> None:
    """V11 and T8: what was sampled after other text than the reply doesn't stand behind the reply."""
    built = merge(*delivered(call(1, [1, 2], [10, 11, 12, E]), call(2, [1, 2, 12, E, 50], [20, E])))
    assert rows(built) == [([1, 2], [10, 11, 12, E], "1111"), ([1, 2, 12, E, 50], [20, E], "11")]


def test_v12_calls_without_ids_give_no_rows_and_are_counted() -> None:
    """V12 and T46: nothing is guessed from text; three calls, three times the reason."""
    calls = [call(n, [], [], text="x", prompt_len=0) for n in (1, 2, 3)]
    built = merge(*delivered(*calls))
    assert built.traces == []
    assert built.counts.untrainable == {"ids_missing": 3}


def test_v13_a_missing_logprob_masks_its_call_only() -> None:
    """V13 and T47: the call is context for its child, whose row stays whole; the published rule dropped a whole row's values."""
    built = merge(
        *delivered(call(1, [1, 2], [10, 11, E], logprobs=[-0.1, -0.2]), call(2, [1, 2, 10, 11, E, 50], [20, E]))
    )
    assert rows(built) == [([1, 2], [10, 11, E, 50, 20, E], "000011")]
    assert reasons(built) == {1: "logprob_length", 2: "trained"}
    assert logprobs_of(built.traces[0]) == [0.0, 0.0, 0.0, 0.0, -0.2, -0.99]


# -- the merge cases ---------------------------------------------------------------------------------------------------


def test_t1_clean_chain() -> None:
    """T1: one row of 19 tokens, mask 1 on six."""
    built = merge(*delivered(call(1, P1, A), call(2, [*P1, *A, *R], B)))
    assert rows(built) == [(P1, [*A, *R, *B], "1110000111")]
    assert len(P1) + 10 == 19
    assert (built.counts.trained, built.counts.trainable_tokens) == (2, 6)


def test_t13_sub_agent_from_the_parents_history() -> None:
    """T13: two rows share the first reply, which is trained in exactly one of them."""
    built = merge(*_t13())
    assert rows(built) == [
        (P1, [*A, *R, *B, *V, *C], "1110000111" + "0000111"),
        (P1, [*A, *R, *V, *X], "000" + "00000000" + "111"),
    ]


def _t13() -> list[CompletionRecord | CompletionDelivery]:
    return delivered(
        call(1, P1, A),
        call(2, [*P1, *A, *R, *V], X),
        call(3, [*P1, *A, *R], B),
        call(4, [*P1, *A, *R, *B, *V], C),
    )


def test_t37_every_order_and_every_repetition_gives_the_same_bytes() -> None:
    """T37 and G5: all 24 orders of T13's calls, each with one fact repeated."""
    facts = _t13()
    calls = [f for f in facts if isinstance(f, CompletionRecord)]
    others = [f for f in facts if not isinstance(f, CompletionRecord)]
    expected = as_bytes(merge(*facts))
    for order in itertools.permutations(calls):
        for again in facts:
            assert as_bytes(merge(*reversed(others), *order, again)) == expected


def test_t25_an_empty_generation_has_no_row_and_breaks_nothing() -> None:
    """T25: a call with no sampled token is counted; its successor still hangs on the first call."""
    built = merge(*delivered(call(1, P1, A), call(2, [*P1, *A, *R], [], text=""), call(3, [*P1, *A, *R, *V], B)))
    assert rows(built) == [(P1, [*A, *R, *V, *B], "111" + "00000000" + "111")]
    assert reasons(built) == {1: "trained", 2: "empty_generation", 3: "trained"}


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (False, True, {1: "trained", 2: "superseded", 3: "trained"}),
        (True, False, {1: "trained", 2: "trained", 3: "superseded"}),
        (True, True, {1: "trained", 2: "terminal_ambiguous", 3: "terminal_ambiguous"}),
        (False, False, {1: "trained", 2: "terminal_ambiguous", 3: "terminal_ambiguous"}),
    ],
)
def test_t35_the_last_call_sent_twice(first: bool, second: bool, expected: dict[int, str]) -> None:
    """T35: of two answers to the same last request the one that arrived alone counts, else neither; the rest stays."""
    prompt = [*P1, *A, *R]
    built = merge(
        *delivered(call(1, P1, A)),
        call(2, prompt, B, request_digest="same"),
        call(3, prompt, C, request_digest="same"),
        delivery(2, delivered=first),
        delivery(3, delivered=second),
    )
    assert reasons(built) == expected
    assert sum(row[2].count("1") for row in rows(built)) == 3 * list(expected.values()).count("trained")


@pytest.mark.parametrize(
    ("texts", "arrived", "expected"),
    [
        (["", "b"], [True, True], ["superseded", "trained"]),
        ([" \n", "", "b"], [True, True, True], ["superseded", "superseded", "trained"]),
        (["", "b", ""], [True, False, True], ["terminal_ambiguous", "superseded", "terminal_ambiguous"]),
        (["", "b"], [True, False], ["trained", "superseded"]),
        (["", "b"], [False, False], ["terminal_ambiguous", "terminal_ambiguous"]),
        (["", ""], [True, True], ["terminal_ambiguous", "terminal_ambiguous"]),
        (["b", ""], [True, True], ["terminal_ambiguous", "terminal_ambiguous"]),
        (["", "b", "c"], [True, True, True], ["terminal_ambiguous"] * 3),
        (["call", "b"], [True, True], ["terminal_ambiguous", "terminal_ambiguous"]),
    ],
)
def test_after_an_empty_reply_the_later_one_is_the_answer(
    texts: list[str], arrived: list[bool], expected: list[str]
) -> None:
    """A harness that asks again after a reply without words or calls uses what it gets then, in whichever order the log has them."""
    prompt = [*P1, *A, *R]
    facts: list[CompletionRecord | CompletionDelivery] = [*delivered(call(1, P1, A))]
    for seq, (text, came) in enumerate(zip(texts, arrived, strict=True), 2):
        called = [{"id": "c", "name": "ls", "arguments": "{}", "span": [0, 1]}] if text == "call" else []
        said = "" if called else text
        one = call(seq, prompt, [70 + seq, 99], request_digest="same", text=said, tool_calls=called, reasoning="hm")
        facts += [one, delivery(seq, delivered=came)]
    for order in (facts, facts[::-1]):
        assert list(reasons(merge(*order)).values())[1:] == expected


@pytest.mark.parametrize(
    ("fact", "reason"), [(delivery(1, delivered=False), "undelivered"), (None, "delivery_unknown")]
)
def test_a_reply_without_proof_of_arrival_is_not_trained(fact: CompletionDelivery | None, reason: str) -> None:
    """The last reply may never have reached the harness: it isn't trained, and the reason says which."""
    built = merge(call(1, P1, A), *([fact] if fact else []))
    assert (built.traces, reasons(built)) == ([], {1: reason})


@pytest.mark.parametrize("fact", [delivery(1, delivered=False), None])
@pytest.mark.parametrize("state", [CompletionState.FINISHED, CompletionState.FAILED])
def test_a_later_prompt_proves_that_a_reply_arrived(fact: CompletionDelivery | None, state: CompletionState) -> None:
    """A prompt that starts with prompt and sampled ids of a call proves its delivery, even the prompt of a failed call."""
    child = call(2, [*P1, *A, *R], B if state is CompletionState.FINISHED else [], state=state)
    built = merge(call(1, P1, A), *([fact] if fact else []), *delivered(child))
    assert reasons(built)[1] == "trained"


def test_delivery_facts_merge_by_or() -> None:
    """One fact that says yes outweighs those that say no, in any order."""
    for order in itertools.permutations([delivery(1, delivered=False), delivery(1), call(1, P1, A)]):
        assert reasons(merge(*order)) == {1: "trained"}


@pytest.mark.parametrize("state", [CompletionState.ABORTED, CompletionState.FAILED])
def test_t40_an_aborted_or_failed_call_is_context_for_what_continues_it(state: CompletionState) -> None:
    """T40c: its tokens stand in the row with mask 0, as the child saw them."""
    built = merge(*delivered(call(1, P1, [53, 54], state=state), call(2, [*P1, 53, 54, 99, *R], B)))
    assert rows(built) == [(P1, [53, 54, 99, *R, *B], "00" + "00000" + "111")]
    assert reasons(built) == {1: state.value, 2: "trained"}


def test_t28_calls_of_another_policy_are_neither_parent_nor_loss() -> None:
    """T28: a judge that shares the session is recorded and counted, no more."""
    judge = call(2, [*P1, *A, *R], X, policy_id="judge")
    built = merge(*delivered(call(1, P1, A), judge, call(3, [*P1, *A, *R, *X, *V], B)))
    assert rows(built) == [(P1, [*A, *R, *X, *V, *B], "111" + "0" * 11 + "111")]
    assert reasons(built)[2] == "other_policy"


def test_t16_a_side_call_is_labelled_and_its_verdict_is_the_proxys() -> None:
    """T16: a hint names the branch; a call that the proxy calls untrainable is so, under the proxy's reason."""
    side = call(1, [1, 77], [70, E], branch_hint="aux")
    built = merge(*delivered(side, call(2, P1, A)))
    assert [t.branch for t in built.traces] == ["aux", "main"]
    told = replace(side, trainable=False, untrainable_reason="side")
    built = merge(*delivered(told, call(2, P1, A)))
    assert (reasons(built), len(built.traces)) == ({1: "side", 2: "trained"}, 1)


def test_t41_versions_are_kept_as_the_engine_names_them() -> None:
    """T41: version 0 is "0", with its span."""
    spans = [VersionSpan(version="0", start=0, end=2), VersionSpan(version="1", start=2, end=3)]
    built = merge(*delivered(call(1, P1, A, version_spans=spans)))
    assert built.traces[0].turns[0].version_spans == spans


@pytest.mark.parametrize("bad", [-9999.0, float("nan"), 0.3, float("-inf"), float("inf")])
def test_t49_values_that_are_no_logprobs(bad: float) -> None:
    """T49: such a value makes its call untrainable."""
    built = merge(*delivered(call(1, P1, A, logprobs=[-0.1, bad, -0.2])))
    assert (built.traces, reasons(built)) == ([], {1: "logprob_invalid"})


@pytest.mark.parametrize("good", [0.0, -0.0, -17.5])
def test_t49_values_that_are(good: float) -> None:
    """T49: exact zeros and unlikely tokens are ordinary."""
    built = merge(*delivered(call(1, P1, A, logprobs=[-0.1, good, -0.2])))
    assert reasons(built) == {1: "trained"}


def test_two_records_under_one_number_are_a_conflict() -> None:
    """The same call with two contents is trained in neither, whichever came first."""
    one, other = call(1, P1, A), call(1, P1, B)
    built = merge(*delivered(one), other)
    assert (built.traces, reasons(built)) == ([], {1: "id_conflict"})
    assert as_bytes(merge(*delivered(other), one)) == as_bytes(built)


def test_writers_stand_in_order() -> None:
    """A second writer's calls follow the first's, and may continue them."""
    built = merge(
        *delivered(call(1, [*P1, *A, *R], B, writer=2)),
        *delivered(call(1, P1, A, writer=1)),
    )
    assert rows(built) == [(P1, [*A, *R, *B], "1110000111")]


def test_twins_with_the_same_tokens_choose_the_delivered_one() -> None:
    """Two calls with equal prompt and reply: the one that arrived carries the chain, the other is superseded."""
    built = merge(
        call(1, P1, A, request_digest="same"),
        delivery(1, delivered=False),
        *delivered(call(2, P1, A, request_digest="same"), call(3, [*P1, *A, *R], B)),
    )
    assert reasons(built) == {1: "superseded", 2: "trained", 3: "trained"}
    assert rows(built) == [(P1, [*A, *R, *B], "1110000111")]


def test_a_long_chain_is_merged_in_linear_time() -> None:
    """400 turns over a 20k-token prompt: reading them once is enough (pairwise comparison would take minutes)."""
    import time

    prompt = list(range(1, 20_001))
    facts: list[CompletionRecord | CompletionDelivery] = []
    for seq in range(1, 401):
        output = [seq, seq + 1, E]
        facts += delivered(call(seq, prompt, output))
        prompt = [*prompt, *output, 7]
    began = time.process_time()
    built = merge(*facts)
    assert time.process_time() - began < 5.0
    assert len(built.traces) == 1
    assert built.counts.trained == 400
