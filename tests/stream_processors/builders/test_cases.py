"""The hard cases of merging, in the toy setting: headers 1 system, 2 user, 3 assistant, 4 tool; 99 ends a message."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from schemas import ids
from schemas.arrays import pack_ids
from schemas.codec import encode
from schemas.records import CompletionRecord, CompletionState, LineageStatus, Trajectory, VersionSpan
from stream_processors.builders import Built, CompletionFact, build
from tests.stream_processors.helpers import E, call, delivered, delivery, logprobs_of, row_of

P1 = [1, 10, 11, 99, 2, 20, 21, 99, 3]
A, B, C, X = [51, 52, 99], [53, 54, 99], [55, 56, 99], [57, 58, 99]
R, V, Q = [4, 41, 99, 3], [2, 22, 99, 3], [4, 42, 99, 3]

SYSTEM = {"role": "system", "content": "s"}
USER = {"role": "user", "content": "u"}
TOOL = {"role": "tool", "content": "r"}
MORE = {"role": "user", "content": "v"}


def said(text: str | None, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}


def merge(*facts: CompletionFact, **options: Any) -> Built:
    return build("prefix_merging", options, facts, "policy")


def rows(built: Built) -> list[tuple[list[int], list[int], str]]:
    return [row_of(t) for t in built.traces]


def states(built: Built) -> dict[int, str]:
    """call_seq → state or reason."""
    return {c.call_seq: c.reason or c.disposition.value for c in built.calls}


def as_bytes(built: Built) -> bytes:
    return encode(Trajectory(traces=built.traces, calls=built.calls, counts=built.counts)).value


# -- history that comes back otherwise ---------------------------------------------------------------------------------


def test_t4_thinking_dropped_at_the_next_user_turn() -> None:
    """T4: the template removes what was thought; two rows of one conversation, and the second one says why."""
    thought = [71, 72, *A]
    first = call(1, P1, thought, messages=[SYSTEM, USER], text="a", reasoning="t")
    second = call(2, [*P1, *thought, *R], B, messages=[SYSTEM, USER, said("a", reasoning_content="t"), TOOL], text="b")
    history = [SYSTEM, USER, said("a"), TOOL, said("b"), MORE]
    third = call(3, [*P1, *A, *R, *B, *V], C, messages=history, text="c")
    built = merge(*delivered(first, second, third))
    assert rows(built) == [
        (P1, [*thought, *R, *B], "11111" + "0000" + "111"),
        ([*P1, *A, *R, *B, *V], C, "111"),
    ]
    kept, dropped = built.traces
    assert (dropped.root_reason, dropped.branch, dropped.parent_trace) == (
        "history_thinking_removed",
        "main",
        kept.index,
    )
    assert dropped.prefix_break == len(P1)


def test_b112_a_template_strips_earlier_thinking() -> None:
    """B112: inside a tool loop the thought stays, at the next user message it goes: chains {1, 2} and {3}, nothing twice."""
    u1, gen, th, code, tool, ans, u2 = 21, 3, 71, 72, 41, 73, 22
    facts = delivered(
        call(1, [u1, gen], [th, code, E], messages=[USER], text="call", reasoning="th"),
        call(2, [u1, gen, th, code, E, tool, gen], [ans, E], messages=[USER, said("call"), TOOL], text="ans"),
        call(
            3,
            [u1, gen, code, E, tool, gen, ans, E, u2, gen],
            [74, E],
            messages=[USER, said("call"), TOOL, said("ans"), MORE],
        ),
    )
    built = merge(*facts)
    assert rows(built) == [
        ([u1, gen], [th, code, E, tool, gen, ans, E], "1110011"),
        ([u1, gen, code, E, tool, gen, ans, E, u2, gen], [74, E], "11"),
    ]
    assert built.traces[1].root_reason == "history_thinking_removed"
    assert (built.counts.trained, built.counts.trainable_tokens) == (3, 7)


@pytest.mark.parametrize("kept", [{"reasoning_content": "t"}, {}])
def test_t5_reasoning_that_is_not_sent_back_is_no_other_message(kept: dict[str, str]) -> None:
    """T5: with or without its reasoning the history holds the same reply; only the tokens say that something changed."""
    first = call(1, P1, A, messages=[SYSTEM, USER], text="a", reasoning="t")
    second = call(2, [*P1, 59, 99, *R], B, messages=[SYSTEM, USER, said("a", **kept), TOOL])
    assert merge(*delivered(first, second)).traces[1].root_reason == "retokenized"


def test_t10_an_assistant_message_that_nobody_sampled_is_context() -> None:
    """T10: a few-shot answer in the first request has loss 0 and is no one's parent; the row starts at the first call."""
    prompt = [1, 10, 99, 2, 20, 99, 3, 60, 99, 2, 21, 99, 3]
    built = merge(*delivered(call(1, prompt, A, messages=[SYSTEM, USER, said("shot"), USER])))
    assert rows(built) == [(prompt, A, "111")]
    assert built.traces[0].root_reason == "session_start"


def test_t11_two_tool_results_in_one_wrap_are_one_interstitial() -> None:
    """T11: what the template printed for both together stands between the turns, once."""
    wrapped = [2, 41, 42, 99, 3]
    built = merge(*delivered(call(1, P1, A), call(2, [*P1, *A, *wrapped], B)))
    assert rows(built) == [(P1, [*A, *wrapped, *B], "111" + "00000" + "111")]


def test_t14_compaction_is_a_second_row_of_the_same_conversation() -> None:
    """T14: the summary's row follows the first one, on the same branch, with the reason; the next call extends it."""
    summary = {"role": "user", "content": "summary"}
    compacted = [1, 10, 11, 99, 2, 60, 99, 3]
    built = merge(
        *delivered(
            call(1, P1, A, messages=[SYSTEM, USER], text="a"),
            call(2, [*P1, *A, *R], B, messages=[SYSTEM, USER, said("a"), TOOL], text="b"),
            call(3, compacted, C, messages=[SYSTEM, summary], text="c"),
            call(4, [*compacted, *C, *R], X, messages=[SYSTEM, summary, said("c"), TOOL]),
        )
    )
    assert rows(built) == [(P1, [*A, *R, *B], "1110000111"), (compacted, [*C, *R, *X], "1110000111")]
    assert [(t.index, t.root_reason, t.branch) for t in built.traces] == [
        (0, "session_start", "main"),
        (1, "context_replaced", "main"),
    ]


def test_b127_the_summary_is_sampled_once_and_context_afterwards() -> None:
    """B127: the summarising call extends its conversation; in the new one the same tokens have mask 0; a shared head links nothing."""
    body, req, summary = list(range(30, 40)), 60, 70
    k1 = call(1, [1, *body], [50], messages=[SYSTEM, USER], text="k")
    k2 = call(2, [1, *body, 50, req], [summary], messages=[SYSTEM, USER, said("k"), MORE], text="sum")
    k3 = call(3, [1, summary, 61], [51], messages=[SYSTEM, {"role": "user", "content": "sum"}])
    built = merge(*delivered(k1, k2, k3))
    assert rows(built) == [([1, *body], [50, req, summary], "101"), ([1, summary, 61], [51], "1")]
    assert (built.traces[1].root_reason, built.traces[1].prefix_break) == ("context_replaced", 1)


def test_b128_a_system_prompt_that_changes_breaks_at_its_place() -> None:
    """B128: the date at token 0 is another one: two rows of one conversation, no matching of what follows."""
    today, tomorrow = ({"role": "system", "content": d} for d in ("d1", "d2"))
    first = call(1, [31, 1, 2], [3], messages=[today, USER], text="a")
    second = call(2, [32, 1, 2, 3, 4], [5], messages=[tomorrow, USER, said("a"), TOOL])
    built = merge(*delivered(first, second))
    assert rows(built) == [([31, 1, 2], [3], "1"), ([32, 1, 2, 3, 4], [5], "1")]
    broken = built.traces[1]
    assert (broken.root_reason, broken.prefix_break, broken.branch, broken.parent_trace) == (
        "system_changed",
        0,
        "main",
        0,
    )


def test_t17_other_tools_begin_a_row_and_leave_the_first_one_alone() -> None:
    """T17: a tool more, another system block; the first row is what it would have been."""
    first = call(1, P1, A, messages=[SYSTEM, USER], text="a", tools=[{"name": "ls"}], tools_digest="one")
    second = call(2, [1, 12, *P1[2:], *A, *R], B, messages=[SYSTEM, USER, said("a"), TOOL], tools_digest="two")
    built = merge(*delivered(first, second))
    assert rows(built)[0] == rows(merge(*delivered(first)))[0]
    assert [t.root_reason for t in built.traces] == ["session_start", "tools_changed"]


def test_what_the_proxy_found_comes_before_what_the_text_tells() -> None:
    """The proxy compared messages by their ids; where it names the break, its word is taken."""
    told = {"lineage": LineageStatus.ROOT, "lineage_reason": "options_changed"}
    built = merge(*delivered(call(1, P1, A, messages=[USER]), call(2, [5, *P1], B, messages=[USER, TOOL], **told)))
    assert built.traces[1].root_reason == "options_changed"


# -- tokens around the end of a turn -----------------------------------------------------------------------------------


def test_t19_newline_glue_is_interstitial() -> None:
    """T19: the template prints 98 behind each end; the sample ends at 99."""
    built = merge(*delivered(call(1, P1, A), call(2, [*P1, *A, 98, *R], B)))
    assert rows(built) == [(P1, [51, 52, 99, 98, *R, *B], "111" + "00000" + "111")]


def test_b118_the_prefix_is_tested_on_ids_not_on_lengths() -> None:
    """B118: the newline behind the end is the server's; one inside the reply is a break."""
    nl = 98
    built = merge(*delivered(call(1, [1, 2], [9, E]), call(2, [1, 2, 9, E, nl, 3, 4], [8, E])))
    ((prompt, response, mask),) = rows(built)
    assert (prompt, response, "0" * len(prompt) + mask) == ([1, 2], [9, E, nl, 3, 4, 8, E], "001100011")
    broken = merge(*delivered(call(1, [1, 2], [9, E]), call(2, [1, 2, 9, nl, E, 3, 4], [8, E])))
    assert len(broken.traces) == 2


def test_t22_a_stop_string_that_was_trimmed() -> None:
    """T22: the history shows 51 without the matched 77, so the next prompt isn't a continuation; nothing is lost or inferred."""
    built = merge(
        *delivered(call(1, P1, [51, 77]), call(2, [*P1, 51, 99, *R], B), call(3, [*P1, 51, 99, *R, *B, *V], C))
    )
    assert rows(built) == [(P1, [51, 77], "11"), ([*P1, 51, 99, *R], [*B, *V, *C], "111" + "0000" + "111")]
    assert built.counts.trained == 3


def test_t22_a_stop_string_that_was_kept() -> None:
    """T22 with token-in: what was sampled stays in the context, so all of it is one row."""
    built = merge(*delivered(call(1, P1, [51, 77]), call(2, [*P1, 51, 77, 99, *R], B)))
    assert rows(built) == [(P1, [51, 77, 99, *R, *B], "11" + "00000" + "111")]


def test_t23_an_end_marker_inside_the_body() -> None:
    """T23: the glue begins behind the whole reply, not behind the first 99; 52 stands once."""
    body = [51, 99, 52, 99]
    built = merge(*delivered(call(1, P1, body), call(2, [*P1, *body, *R], B)))
    assert rows(built) == [(P1, [*body, *R, *B], "1111" + "0000" + "111")]


# -- forks, twins, order -----------------------------------------------------------------------------------------------


def test_t29_the_same_words_with_another_image_are_another_request() -> None:
    """T29: a text model reads the same placeholder for both; two roots, neither is the other's retry."""
    image = [{"type": "image_url", "image_url": {"url": u}} for u in ("data:1", "data:2")]
    one, other = (call(n, P1, [50 + n, E], messages=[{"role": "user", "content": [image[n - 1]]}]) for n in (1, 2))
    built = merge(*delivered(one, other))
    assert rows(built) == [(P1, [51, E], "11"), (P1, [52, E], "11")]
    assert states(built) == {1: "trained", 2: "trained"}


def test_t34_the_first_call_sent_again() -> None:
    """T34: the answer that got lost is superseded; the conversation hangs on the one that arrived."""
    first = call(1, P1, [63, 64, 99], request_digest="same")
    again = call(2, P1, A, request_digest="same")
    built = merge(first, delivery(1, delivered=False), *delivered(again, call(3, [*P1, *A, *R], B)))
    assert rows(built) == [(P1, [*A, *R, *B], "1110000111")]
    assert states(built) == {1: "superseded", 2: "trained", 3: "trained"}


def test_b121_a_sub_agents_turns_between_the_parents() -> None:
    """B121: three chains of two calls each, whatever order they came in; the longest match is the parent."""
    facts = delivered(
        call(1, [1, 2], [3]),
        call(2, [50], [51]),
        call(3, [50, 60], [61]),
        call(4, [50, 51, 52], [53]),
        call(5, [1, 2, 3, 4], [5]),
        call(6, [50, 60, 61, 62], [63]),
    )
    expected = {
        ((1, 2), (3, 4, 5), "101"),
        ((50,), (51, 52, 53), "101"),
        ((50, 60), (61, 62, 63), "101"),
    }
    for shift in range(len(facts)):
        built = merge(*facts[shift:], *facts[:shift])
        assert {(tuple(p), tuple(r), m) for p, r, m in rows(built)} == expected


def test_b122_one_prompt_is_the_prefix_of_several_branches() -> None:
    """B122: X-Y-W and X-Z; token 2 is trained in one of them; as many trained tokens as were sampled."""
    built = merge(
        *delivered(call(1, [1], [2]), call(2, [1, 2, 3], [4]), call(3, [1, 2, 3], [5]), call(4, [1, 2, 3, 4, 6], [7]))
    )
    assert rows(built) == [([1], [2, 3, 4, 6, 7], "10101"), ([1], [2, 3, 5], "001")]
    assert built.counts.trainable_tokens == built.counts.sampled_tokens == 4


@pytest.mark.parametrize("is_named", [True, False])
def test_b124_identical_prompts_in_parallel(is_named: bool) -> None:
    """B124: three sub-agents start alike, two of them answer alike: six calls, three chains, one continuation for each."""
    starts = [call(n, [1, 2], [out], request_digest="same") for n, out in ((1, 3), (2, 4), (3, 3))]
    names = {"lineage": LineageStatus.RESOLVED} if is_named else {}
    follow = [
        call(4, [1, 2, 3, 9], [31], request_digest="x", parent_id=starts[2].completion_id if is_named else "", **names),
        call(5, [1, 2, 3, 9], [32], request_digest="x", parent_id=starts[0].completion_id if is_named else "", **names),
        call(6, [1, 2, 4, 9], [41]),
    ]
    built = merge(*delivered(*starts, *follow))
    assert sorted(rows(built)) == [
        ([1, 2], [3, 9, 31], "101"),
        ([1, 2], [3, 9, 32], "101"),
        ([1, 2], [4, 9, 41], "101"),
    ]
    assert built.counts.trained == 6
    third = next(t for t in built.traces if row_of(t)[1] == [3, 9, 31])
    assert third.turns[0].completion_id == starts[2 if is_named else 0].completion_id


def test_b125_any_order_of_arrival() -> None:
    """B125: the third call first: the result is that of the order in which they were asked."""
    facts = delivered(call(1, [1], [2, 3]), call(2, [1, 2, 3, 4], [5, 6]), call(3, [1, 2, 3, 4, 5, 6, 7], [8]))
    expected = as_bytes(merge(*facts))
    for order in itertools.permutations(facts):
        assert as_bytes(merge(*order)) == expected
    assert rows(merge(*facts)) == [([1], [2, 3, 4, 5, 6, 7, 8], "110110" + "1")]


def test_two_writers_in_any_interleaving_give_the_same_rows() -> None:
    """A take-over: the second writer's records may come before, between or behind the first one's."""
    first = delivered(call(1, P1, A), call(2, [*P1, *A, *R], B))
    second = delivered(call(1, [*P1, *A, *R, *B, *V], C, writer=2), call(2, [*P1, *A, *R, *B, *V, *C, *R], X, writer=2))
    expected = as_bytes(merge(*first, *second))
    assert rows(merge(*first, *second)) == [(P1, [*A, *R, *B, *V, *C, *R, *X], "111000011100001110000111")]
    for places in itertools.combinations(range(8), 4):
        one, other = iter(first), iter(second)
        assert as_bytes(merge(*(next(one) if n in places else next(other) for n in range(8)))) == expected


def test_a_delta_that_comes_before_its_parent_waits_for_it() -> None:
    """Also through a chain of two, and across writers."""
    first = call(1, P1, A)
    second = _delta(2, first, [*P1, *A], R, B)
    third = replace(_delta(1, second, [*P1, *A, *R, *B], V, C), writer=2, completion_id="third")
    expected = as_bytes(merge(*delivered(first, second), third, delivery(1, writer=2)))
    assert as_bytes(merge(third, delivery(1, writer=2), *delivered(second), *delivered(first))) == expected
    assert rows(merge(third, delivery(1, writer=2), *delivered(second, first)))[0][1] == [*A, *R, *B, *V, *C]


def _delta(
    seq: int, parent: CompletionRecord, prefix: list[int], suffix: list[int], out: list[int]
) -> CompletionRecord:
    return call(
        seq,
        suffix,
        out,
        parent_id=parent.completion_id,
        prefix_len=len(prefix),
        prefix_digest=ids.digest(pack_ids(prefix)),
        prompt_len=len(prefix) + len(suffix),
    )


def test_a_call_that_the_proxy_named_as_a_parent_was_received() -> None:
    """Rendered anew from the template, the child's tokens prove nothing; that its history held the reply does."""
    first = call(1, P1, A)
    second = call(2, [*P1, 59, 99, *R], B, parent_id=first.completion_id, lineage=LineageStatus.RESOLVED)
    assert states(merge(first, *delivered(second))) == {1: "trained", 2: "trained"}
    assert states(merge(first, *delivered(replace(second, lineage=LineageStatus.AMBIGUOUS))))[1] == "delivery_unknown"


# -- versions, ids, log-probabilities ----------------------------------------------------------------------------------


def test_t40_an_update_inside_a_generation() -> None:
    """T40: (a) versions by token are kept; (b) with no more than the ends known, the call is masked; (c) aborted is no end."""
    kept = [VersionSpan(version="7", start=0, end=2), VersionSpan(version="8", start=2, end=4)]
    built = merge(*delivered(call(1, P1, [53, 54, 55, 99], version_spans=kept)))
    assert built.traces[0].turns[0].version_spans == kept
    ends = [VersionSpan(version="7", start=0, end=1), VersionSpan(version="8", start=3, end=4)]
    assert states(merge(*delivered(call(1, P1, [53, 54, 55, 99], version_spans=ends)))) == {1: "mixed_version"}
    aborted = call(1, P1, [53, 54], state=CompletionState.ABORTED, finish_reason="abort")
    built = merge(*delivered(aborted, call(2, [*P1, 53, 54, 99, *R], B)))
    assert states(built) == {1: "aborted", 2: "trained"}
    assert rows(built) == [(P1, [53, 54, 99, *R, *B], "00" + "00000" + "111")]


def test_t46_missing_ids_are_three_alarms_and_no_row() -> None:
    """T46: nothing is tokenised in their place; the session trains nothing, and says why three times."""
    built = merge(*delivered(*(call(n, [], [], text="x", prompt_len=0) for n in (1, 2, 3))))
    assert (built.traces, built.counts.trained, built.counts.untrainable) == ([], 0, {"ids_missing": 3})


def test_t47_two_logprobs_for_three_ids() -> None:
    """T47: a short list isn't filled up."""
    built = merge(*delivered(call(1, P1, A, logprobs=[-0.1, -0.2])))
    assert states(built) == {1: "logprob_length"}


def test_t48_logprobs_of_two_kinds_are_told() -> None:
    """T48: rows of one session whose engines measured differently name no single mode."""
    built = merge(*delivered(call(1, P1, A), call(2, [5], B, logprobs_mode="processed")))
    assert built.logprobs_mode == "mixed"
    assert logprobs_of(built.traces[0]) == [-0.51, -0.52, -0.99]


@pytest.mark.parametrize(
    "bad",
    [call(1, P1, [51, -1, 99]), replace(call(1, P1, [51, 152_064, 99]), trainable=False, untrainable_reason="oov")],
    ids=["below zero", "the proxy knows its vocabulary"],
)
def test_t50_an_id_outside_the_vocabulary(bad: CompletionRecord) -> None:
    """T50: that call is masked, the others aren't."""
    built = merge(*delivered(replace(bad, logprobs=call(1, P1, A).logprobs), call(2, [5], B)))
    assert states(built) == {1: "oov", 2: "trained"}


# -- splicing, for comparison ------------------------------------------------------------------------------------------


def drifted(text: str = "a", **first: Any) -> list[CompletionFact]:
    """V2: the reply came back in the same words and other tokens."""
    return [
        *delivered(call(1, [1, 2], [10, 11, E], messages=[USER], text="a", **first)),
        *delivered(call(2, [1, 2, 12, E, 50], [20, E], messages=[USER, said(text), TOOL])),
    ]


def test_v2_spliced_is_the_published_row_and_says_that_it_is_off_context() -> None:
    """V2 with drift=splice: the published result, with the later turn and the trace marked."""
    (trace,) = merge(*drifted(), drift="splice").traces
    assert row_of(trace) == ([1, 2], [10, 11, E, 50, 20, E], "111011")
    assert [t.fidelity for t in trace.turns] == ["exact", "off_context"]
    assert trace.is_off_context
    assert [t.is_off_context for t in merge(*drifted()).traces] == [False, False]


def test_v3_spliced_a_cut_reply_is_closed_at_the_first_end() -> None:
    """V3 with drift=splice: a reply that doesn't end itself keeps the server's end of turn, masked."""
    facts = [
        *delivered(call(1, [1, 2], [10, 11], messages=[USER], text="a", finish_reason="length")),
        *delivered(call(2, [1, 2, 12, E, 50], [20, E], messages=[USER, said("a"), TOOL])),
    ]
    assert rows(merge(*facts, drift="splice")) == [([1, 2], [10, 11, E, 50, 20, E], "110011")]


def test_v11_a_rewritten_reply_is_never_spliced() -> None:
    """V11: other words are another context, whatever the drift."""
    assert (
        rows(merge(*drifted(text="b"), drift="splice"))
        == rows(merge(*drifted(text="b")))
        == [
            ([1, 2], [10, 11, E], "111"),
            ([1, 2, 12, E, 50], [20, E], "11"),
        ]
    )


def test_v10_without_an_end_of_turn_nothing_is_spliced_and_nothing_dropped() -> None:
    """V10: a stop string at the end of the first reply isn't taken for the end of turn: no such token in the tail, two rows."""
    facts = [
        *delivered(call(1, [1, 2], [10, 77], messages=[USER], text="a")),
        *delivered(call(2, [1, 2, 12, E, 50], [20, E], messages=[USER, said("a"), TOOL])),
    ]
    assert merge(*facts, drift="splice").counts.trained == 2
    assert len(merge(*facts, drift="splice").traces) == 2
    spliced = merge(*facts, drift="splice", end_of_turn_id=E)
    assert rows(spliced) == [([1, 2], [10, 77, E, 50, 20, E], "110011")]


def test_a_spliced_reply_is_found_at_whole_tokens_only() -> None:
    """The bytes of the end of turn across two ids (0x6300 0x0063…) aren't the token."""
    facts = [
        *delivered(call(1, [1, 2], [10, 11, E], messages=[USER], text="a")),
        *delivered(call(2, [1, 2, E << 8, E, 50], [20, E], messages=[USER, said("a"), TOOL])),
    ]
    assert rows(merge(*facts, drift="splice")) == [([1, 2], [10, 11, E, 50, 20, E], "111011")]
