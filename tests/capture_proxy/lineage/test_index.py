"""Which earlier call a request goes on from, on the toy model: the merger's cases, as far as they are the proxy's."""

from __future__ import annotations

import base64
import itertools
from dataclasses import replace
from typing import Any

import pytest

from capture_proxy.lineage.index import Lineage
from capture_proxy.lineage.nodes import head_of
from capture_proxy.reply import ProxyError, tool_call_id
from capture_proxy.text_in import stand_alone
from tests.capture_proxy.lineage.toy import (
    OPENING,
    P1,
    Q,
    R,
    S,
    ToyRenderer,
    U,
    V,
    World,
    assistant,
    one_line,
    system,
    tool,
    tool_calls,
    user,
)

TOOLS = [{"type": "function", "function": {"name": "61"}}]


def test_t1_a_clean_chain_goes_on_token_by_token() -> None:
    """The second prompt is the first, its sampled tokens, and the tail; the record holds the tail alone."""
    world = World()
    c1 = world.ask(OPENING, [51, 52, 99])
    c2 = world.ask([*OPENING, c1.answer, tool(R)], [53, 54, 99])
    assert c1.prompt == P1
    assert c1.told == ("root", "session_start")
    assert c2.prompt == [*P1, 51, 52, 99, 4, 41, 99, 3]
    assert c2.told == ("resolved", "")
    assert c2.parent_id == c1.id
    assert c2.record.prefix_len == 12
    assert list(memoryview(c2.record.suffix_ids).cast("i")) == [4, 41, 99, 3]
    assert (c2.record.messages_prefix, c2.record.messages) == (3, [tool(R)])


def test_t2_another_spelling_of_the_same_text_keeps_the_sampled_tokens() -> None:
    """Whatever ids the text would get, the sampled ones stand in the next prompt; from text it would be another line."""
    world = World()
    world.ask(OPENING, [51, 52, 99], parsed=ToyRenderer().parse([59, 99]))  # "59" re-encodes as 59
    c2 = world.ask([*OPENING, assistant("59"), tool(R)], [53, 54, 99])
    assert c2.prompt == [*P1, 51, 52, 99, 4, 41, 99, 3]
    text_in = World(history="template")
    d1 = text_in.ask(OPENING, [51, 52, 99], parsed=ToyRenderer().parse([59, 99]))
    d2 = text_in.ask([*OPENING, assistant("59"), tool(R)], [53, 54, 99])
    assert d2.prompt == [*P1, 59, 99, 4, 41, 99, 3]
    assert (d2.told, d2.parent_id, d2.record.prefix_len) == (("root", "retokenized"), "", 0)
    assert (d2.record.notes["history"], c2.record.notes["history"]) == ("template", "sampled")
    assert d1.record.lineage == "root"


def test_t4_thinking_that_the_template_drops_is_named() -> None:
    """Under `template` the third call begins anew, since the template removed the thinking; under `sampled` it is one line."""
    for history in ("template", "sampled"):
        world = World(history=history)
        c1 = world.ask(OPENING, [71, 72, 51, 52, 99])
        c2 = world.ask([*OPENING, c1.answer, tool(R)], [53, 99])
        c3 = world.ask([*OPENING, c1.answer, tool(R), c2.answer, user(V)], [55, 99])
        assert c2.parent_id == c1.id
        if history == "template":
            assert c3.told == ("root", "history_thinking_removed")
            assert c3.prompt == [*P1, 51, 52, 99, 4, 41, 99, 3, 53, 99, 2, 22, 99, 3]
        else:
            assert c3.parent_id == c2.id
            assert one_line(world.reaches(), c1, c2, c3)


def test_t5_a_client_that_drops_the_thinking_finds_its_parent() -> None:
    """Absent thinking is no difference; trimmed thinking neither; thinking never becomes content. The mode is on the record."""
    world = World()
    c1 = world.ask(OPENING, [71, 72, 51, 52, 99])
    for sent in (assistant("51 52"), assistant("51 52", reasoning_content=" 71 72\n")):
        c2 = world.ask([*OPENING, sent, tool(R)], [53, 99])
        assert c2.parent_id == c1.id
        assert c2.prompt == [*P1, 71, 72, 51, 52, 99, 4, 41, 99, 3]
        assert c2.record.notes["history"] == "sampled"
    changed = world.ask([*OPENING, assistant("51 52", reasoning_content="71 79"), tool(R)], [53, 99])
    assert changed.told == ("root", "assistant_rewritten")
    template = World(history="template")
    template.ask(OPENING, [71, 72, 51, 52, 99])
    without = template.ask([*OPENING, assistant("51 52"), tool(R)], [53, 99])
    assert without.prompt == [*P1, 51, 52, 99, 4, 41, 99, 3]
    assert without.told == ("root", "history_thinking_removed")


@pytest.mark.parametrize("spelling", [{"content": None}, {"content": ""}, {"content": []}, {}])
def test_t7_empty_content_is_empty_however_it_is_spelled(spelling: dict[str, Any]) -> None:
    """null, "", [] and no content at all name the same answer."""
    world = World()
    c1 = world.ask(OPENING, [61, 99])
    sent = {"role": "assistant", "tool_calls": c1.answer["tool_calls"], **spelling}
    c2 = world.ask([*OPENING, sent, tool(R, c1.answer["tool_calls"][0]["id"])], [53, 99])
    assert c2.parent_id == c1.id


def test_t8_an_answer_that_the_client_changed_is_not_spliced() -> None:
    """A shortened answer, or changed arguments, is text that nobody sampled there: a new root with the reason."""
    world = World()
    world.ask(OPENING, [51, 52, 99])
    cut = world.ask([*OPENING, assistant("51"), tool(R)], [53, 99])
    assert cut.told == ("root", "assistant_rewritten")
    assert cut.prompt == [*P1, 51, 99, 4, 41, 99, 3]
    assert cut.record.prefix_len == 0


def test_an_answer_changed_later_keeps_the_line_before_it() -> None:
    """The longest unchanged beginning is still gone on from; the changed answer is text in the tail."""
    world = World()
    c1 = world.ask(OPENING, [51, 52, 99])
    c2 = world.ask([*OPENING, c1.answer, user(V)], [53, 54, 99])
    c3 = world.ask([*OPENING, c1.answer, user(V), assistant("53"), user(V)], [55, 99])
    assert c2.parent_id == c1.id
    assert (c3.parent_id, c3.told) == (c1.id, ("resolved", "assistant_rewritten"))
    assert c3.prompt == [*P1, 51, 52, 99, 2, 22, 99, 3, 53, 99, 2, 22, 99, 3]


def test_t10_an_answer_that_nobody_sampled_is_no_parent() -> None:
    """Few-shot examples in the first request are history, nothing else."""
    world = World()
    c1 = world.ask([*OPENING, assistant("58"), user(V)], [51, 99])
    assert c1.told == ("root", "session_start")
    c2 = world.ask([*OPENING, assistant("58"), user(V), c1.answer, user(V)], [52, 99])
    assert c2.parent_id == c1.id


def test_t11_two_results_in_a_row_are_one_block() -> None:
    """The tail is what the template prints for both results together."""
    world = World(renderer=ToyRenderer(is_wrapping_results=True))
    c1 = world.ask(OPENING, [61, 62, 99])
    first, second = (call["id"] for call in c1.answer["tool_calls"])
    c2 = world.ask([*OPENING, c1.answer, tool(R, first), tool(Q, second)], [53, 99])
    assert c2.prompt == [*P1, 61, 62, 99, 2, 41, 42, 99, 3]


def test_results_in_the_order_in_which_they_came_stay_in_it() -> None:
    """The second call's result first: one line as long as the client keeps that order; in another order it is another history."""
    world = World()
    c1 = world.ask(OPENING, [61, 62, 99])
    first, second = (call["id"] for call in c1.answer["tool_calls"])
    history = [*OPENING, c1.answer, tool(Q, second), tool(R, first)]
    c2 = world.ask(history, [53, 99])
    c3 = world.ask([*history, c2.answer, user(V)], [54, 99])
    assert (c2.parent_id, c3.parent_id) == (c1.id, c2.id)
    other = world.ask([*OPENING, c1.answer, tool(R, first), tool(Q, second), c2.answer, user(V)], [54, 99])
    assert other.parent_id == c1.id
    assert other.told == ("resolved", "")


def test_ids_that_a_client_dropped_are_matched_by_order_and_restored() -> None:
    """A history whose calls have made-up ids finds its parent; the record's results name the calls by our ids."""
    world = World()
    c1 = world.ask(OPENING, [61, 61, 99])
    lost = assistant(tool_calls=tool_calls(("call_0", "61", "{}"), ("call_1", "61", "{}")))
    c2 = world.ask([*OPENING, lost, tool(R, "call_1"), tool(Q, "call_0"), user(V)], [53, 99])
    assert c2.parent_id == c1.id
    assert [m.get("tool_call_id") for m in c2.record.messages] == [
        tool_call_id(c1.id, 1),
        tool_call_id(c1.id, 0),
        None,
    ]
    c3 = world.ask([*OPENING, lost, tool(R, "call_1"), tool(Q, "call_0"), user(V), c2.answer, user(V)], [54, 99])
    assert c3.parent_id == c2.id


def test_t13_a_sub_agent_may_start_from_the_parents_history() -> None:
    """Two calls go on from one; each has it as its parent, and the shared answer is one call's."""
    world = World()
    c1 = world.ask(OPENING, [51, 52, 99])
    s1 = world.ask([*OPENING, c1.answer, tool(R), user(V)], [57, 99])
    c2 = world.ask([*OPENING, c1.answer, tool(R)], [53, 54, 99])
    c3 = world.ask([*OPENING, c1.answer, tool(R), c2.answer, user(V)], [55, 99])
    assert [s1.parent_id, c2.parent_id, c3.parent_id] == [c1.id, c1.id, c2.id]
    assert one_line(world.reaches(), c1, s1)
    assert one_line(world.reaches(), c1, c2, c3)


def test_t14_compaction_begins_anew_under_the_same_head() -> None:
    """Same system prompt, another history: `context_replaced`; what follows goes on from there."""
    world = World()
    c1 = world.ask(OPENING, [51, 52, 99])
    world.ask([*OPENING, c1.answer, tool(R)], [53, 54, 99])
    c3 = world.ask([system(S), user("30 31")], [55, 99])
    c4 = world.ask([system(S), user("30 31"), c3.answer, user(V)], [56, 99])
    assert c3.told == ("root", "context_replaced")
    assert c4.parent_id == c3.id


def test_b127_a_summary_in_a_new_history_is_text() -> None:
    """The summary call extends the conversation; the new history that holds its words has no parent."""
    world = World()
    k1 = world.ask(OPENING, [51, 99])
    k2 = world.ask([*OPENING, k1.answer, user("33")], [52, 99])
    k3 = world.ask([system(S), user("52 34")], [53, 99])
    assert k2.parent_id == k1.id
    assert (k3.parent_id, k3.told) == ("", ("root", "context_replaced"))


def test_b128_another_system_prompt_is_another_conversation() -> None:
    """The date rolled over: no parent, nothing fuzzy."""
    world = World()
    d1 = world.ask([system("11"), user(U)], [51, 99])
    d2 = world.ask([system("12"), user(U), d1.answer, user(V)], [52, 99])
    assert (d2.parent_id, d2.told) == ("", ("root", "new_conversation"))


def test_t17_other_tools_begin_anew() -> None:
    """One tool more renders another head: `tools_changed`. With the old tools again, the old line goes on."""
    world = World()
    c1 = world.ask(OPENING, [51, 99], tools=TOOLS)
    c2 = world.ask([*OPENING, c1.answer, user(V)], [52, 99], tools=[*TOOLS, *TOOLS])
    assert (c2.parent_id, c2.told) == ("", ("root", "tools_changed"))
    c3 = world.ask([*OPENING, c1.answer, user(V), c2.answer, user(V)], [53, 99], tools=TOOLS)
    assert (c3.parent_id, c3.told) == (c1.id, ("resolved", "tools_changed"))
    assert c3.prompt == [7, 1, *P1, 51, 99, 2, 22, 99, 3, 52, 99, 2, 22, 99, 3]


def test_other_template_switches_begin_anew() -> None:
    """A switch may change what stands anywhere in the prompt."""
    world = World()
    c1 = world.ask(OPENING, [51, 99], template_kwargs={"enable_thinking": False})
    c2 = world.ask([*OPENING, c1.answer, user(V)], [52, 99])
    assert (c2.parent_id, c2.told) == ("", ("root", "options_changed"))


def test_t19_what_the_template_prints_behind_an_end_is_in_the_tail() -> None:
    """The glue token between two messages comes from the template, not from the sample."""
    world = World(renderer=ToyRenderer(glue=True))
    c1 = world.ask(OPENING, [51, 52, 99])
    c2 = world.ask([*OPENING, c1.answer, tool(R)], [53, 99])
    assert c2.prompt[len(c1.prompt) :] == [51, 52, 99, 98, 4, 41, 99, 98, 3]


def test_b118_the_tail_begins_where_the_sample_ended() -> None:
    """Sample to its end token, then the newline: nothing is shifted, and the mask's places are those of the sample."""
    world = World(renderer=ToyRenderer(glue=True))
    c1 = world.ask([user("5")], [9, 99])
    c2 = world.ask([user("5"), c1.answer, user("6")], [8, 99])
    assert c2.prompt == [2, 5, 99, 98, 3, 9, 99, 98, 2, 6, 99, 98, 3]
    assert c2.record.prefix_len == 7


def test_t22_a_stop_string_stays_where_it_was_sampled() -> None:
    """The client never saw 77, the engine sampled it: the next prompt holds it and closes the turn with the real end token."""
    world = World()
    c1 = world.ask(OPENING, [51, 77], stop="77")
    assert c1.answer["content"] == "51"
    c2 = world.ask([*OPENING, c1.answer, tool(R)], [53, 99])
    assert c2.parent_id == c1.id
    assert c2.prompt == [*P1, 51, 77, 99, 4, 41, 99, 3]


def test_t23_an_end_token_inside_an_answer_is_no_end() -> None:
    """The sample stands once and whole, whatever it holds."""
    world = World()
    c1 = world.ask(OPENING, [51, 99, 52, 99])
    c2 = world.ask([*OPENING, c1.answer, tool(R)], [53, 99])
    assert c2.prompt == [*P1, 51, 99, 52, 99, 4, 41, 99, 3]


def test_a_turn_cut_by_length_is_closed() -> None:
    """The canonical end token closes it; the tokens stay."""
    world = World()
    c1 = world.ask(OPENING, [51, 52], finish="length")
    c2 = world.ask([*OPENING, c1.answer, user(V)], [53, 99])
    assert c2.prompt == [*P1, 51, 52, 99, 2, 22, 99, 3]


def test_t25_an_empty_answer_breaks_no_line() -> None:
    """Whether the client keeps the empty answer or leaves it out, the next call hangs on the first."""
    world = World()
    c1 = world.ask(OPENING, [51, 99])
    c2 = world.ask([*OPENING, c1.answer, tool(R)], [])
    kept = world.ask([*OPENING, c1.answer, tool(R), c2.answer, user(V)], [53, 99])
    left_out = world.ask([*OPENING, c1.answer, tool(R), user(V)], [53, 99])
    assert kept.parent_id == c2.id
    assert left_out.parent_id == c1.id
    reaches = world.reaches()
    assert one_line(reaches, c1, kept)
    assert one_line(reaches, c1, left_out)


def test_t28_another_policys_call_is_no_parent() -> None:
    """A judge's answer in the history is text, also when its words are known."""
    world = World()
    c1 = world.ask(OPENING, [51, 99])
    judge = World(lineage=Lineage("judge"), seq=10)
    j1 = judge.ask([*OPENING, c1.answer, user("77")], [58, 99])
    world.lineage.add(replace(j1.record, policy_id="judge"))
    c2 = world.ask([*OPENING, c1.answer, user("77"), j1.answer, user(V)], [52, 99])
    assert c2.parent_id == c1.id
    assert j1.id not in world.lineage.nodes


def image(data: bytes, *, newlines: bool = False) -> dict[str, Any]:
    text = base64.encodebytes(data).decode() if newlines else base64.b64encode(data).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}


def test_t29_other_image_bytes_are_another_conversation() -> None:
    """Same words, another picture: two roots. The same bytes in another encoding are the same picture; the record has the picture."""
    world = World()
    parts = [{"type": "text", "text": U}, image(b"\x01" * 60)]
    c1 = world.ask([user(parts)], [51, 99])
    again = [{"type": "text", "text": U}, image(b"\x01" * 60, newlines=True)]
    same = world.ask([user(again), c1.answer, user(V)], [52, 99])
    other = world.ask([user([{"type": "text", "text": U}, image(b"\x02" * 60)]), c1.answer, user(V)], [52, 99])
    assert same.parent_id == c1.id
    assert (other.parent_id, other.told) == ("", ("root", "new_conversation"))
    assert other.record.messages[0]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")


def test_b131_equal_image_bytes_render_to_equal_tokens() -> None:
    """The prompt of the next turn keeps the image's tokens as they were sent."""
    world = World()
    parts = [{"type": "text", "text": "1"}, image(b"\x01" * 60)]
    c1 = world.ask([user(parts)], [51, 99])
    c2 = world.ask([user(parts), c1.answer, user(V)], [52, 99])
    assert c2.prompt[: len(c1.prompt)] == c1.prompt == [2, 1, 88, 99, 3]


# --- identity by name


def test_b94_arguments_spelled_otherwise_are_the_same_call() -> None:
    """Key order, spacing, escapes and 1.0 for 1 make no difference: the sampled tokens are spliced. A changed value isn't."""
    made = '{"path": "ü/日本",  "n":1.0, "big": 12345678901234567890}'
    sent = '{"big":12345678901234567000,"n":1,"path":"\\u00fc/\\u65e5\\u672c"}'
    parsed = ToyRenderer().parse([61, 99])
    call = parsed.tool_calls[0].__class__("bash", made, (0, 1))
    parsed = parsed.__class__(text="", reasoning="", tool_calls=(call,), status="ok")
    for arguments, is_same in ((sent, True), (sent.replace(':1,"', ':2,"'), False)):
        world = World()
        c1 = world.ask(OPENING, [61, 99], parsed=parsed)
        call_id = tool_call_id(c1.id, 0)
        history = [*OPENING, assistant(tool_calls=tool_calls((call_id, "61", arguments))), tool(R, call_id)]
        history[2]["tool_calls"][0]["function"]["name"] = "bash"
        found = world.lineage.find(history, head_of("", {}))
        assert (found.parent_id == c1.id) is is_same
        assert found.reason == ("" if is_same else "assistant_rewritten")


def test_b110_a_known_call_with_broken_arguments_is_recognised() -> None:
    """Half a JSON text is compared as the text it is; replayed as it was sampled, the original tokens stand in the prompt."""
    world = World()
    parsed = ToyRenderer().parse([61, 99])
    broken = parsed.tool_calls[0].__class__("w", '{"p":"/a","t":"abc', (0, 1))
    c1 = world.ask(OPENING, [61, 99], parsed=parsed.__class__(text="", reasoning="", tool_calls=(broken,), status="ok"))
    call_id = tool_call_id(c1.id, 0)
    history = [*OPENING, assistant(tool_calls=tool_calls((call_id, "w", '{"p":"/a","t":"abc'))), tool(R, call_id)]
    assert world.lineage.find(history, head_of("", {})).parent_id == c1.id


def test_b62_a_mark_names_the_call_where_the_words_do_not() -> None:
    """Two identical answers: the echoed mark of the second one decides."""
    world = World()
    first = world.ask(OPENING, [51, 99])
    second = world.ask(OPENING, [51, 99])
    marked = world.ask([*OPENING, assistant("51"), user(V)], [52, 99], turn_ids=("", "", second.id, ""))
    assert marked.parent_id == second.id
    assert first.told[1] == "session_start"
    assert second.told == ("root", "resampled")


# --- twins, retries, failures


def test_b124_indistinguishable_twins_get_one_continuation_each() -> None:
    """Three equal requests, answers 3, 4, 3: the continuations of 3 go to the two that said it, one each; a further one is unknown."""
    world = World()
    running = [world.begin([user("5")]) for _ in range(3)]
    a, b, c = (world.end(call, [o, 99]) for call, o in zip(running, (43, 44, 43), strict=True))
    turns = [world.ask([user("5"), assistant(said), user("9")], [51, 99]) for said in ("43", "44", "43")]
    assert turns[1].parent_id == b.id
    assert {turns[0].parent_id, turns[2].parent_id} == {a.id, c.id}
    assert all(turn.told[0] == "resolved" for turn in turns)


def test_twins_of_other_tokens_that_are_all_taken_are_ambiguous() -> None:
    """The same words in different tokens, each gone on from: a third continuation has no parent, and says why."""
    world = World()
    parsed = ToyRenderer().parse([51, 99])
    twins = [world.ask(OPENING, output, parsed=parsed) for output in ([51, 99], [50, 1, 99])]
    taken = [world.ask([*OPENING, assistant("51"), user(V)], [52, 99]) for _ in range(2)]
    third = world.ask([*OPENING, assistant("51"), user(V)], [53, 99])
    assert {t.parent_id for t in taken} == {t.id for t in twins}
    assert (third.told, third.parent_id) == (("ambiguous", "identical_twins"), "")
    assert third.prompt == [*P1, 51, 99, 2, 22, 99, 3]


def test_a_twin_that_never_reached_the_client_is_none() -> None:
    """Of two equal answers only one was delivered: it is the parent of everything that goes on."""
    world = World()
    lost = world.ask(OPENING, [51, 99], delivered=False)
    got = world.ask(OPENING, [51, 99], delivered=True)
    turns = [world.ask([*OPENING, assistant("51"), user(V)], [o, 99]) for o in (52, 53)]
    assert [t.parent_id for t in turns] == [got.id, got.id]
    assert lost.told[1] == "session_start"


def test_b100_t31_two_calls_with_one_body_are_siblings() -> None:
    """Both run, both are recorded; the one whose answer is gone on from has the child."""
    world = World()
    calls = [world.begin(OPENING), world.begin(OPENING)]
    first, second = world.end(calls[0], [51, 99]), world.end(calls[1], [52, 99])
    nxt = world.ask([*OPENING, second.answer, user(V)], [53, 99])
    assert nxt.parent_id == second.id
    assert first.parent_id == second.parent_id == ""


def test_t34_a_first_call_that_was_sent_again() -> None:
    """The attempt that got lost has no children; the second attempt's answer is gone on from, and nothing is refused."""
    world = World()
    lost = world.ask(OPENING, [63, 64, 99], parsed=ToyRenderer().parse([53, 54, 99]), delivered=False)
    again = world.ask(OPENING, [51, 52, 99], delivered=True)
    c2 = world.ask([*OPENING, again.answer, tool(R)], [53, 99])
    assert c2.parent_id == again.id
    assert again.told == ("root", "resampled")
    assert lost.record.trainable


def test_t35_a_last_call_that_was_sent_again_has_the_same_parent() -> None:
    """Both attempts go on from the first call, whichever arrived."""
    world = World()
    c1 = world.ask(OPENING, [51, 99])
    twice = [world.ask([*OPENING, c1.answer, tool(R)], [o, 99], delivered=o == 52) for o in (52, 53)]
    assert [t.parent_id for t in twice] == [c1.id, c1.id]
    assert twice[1].told == ("resolved", "resampled")


def test_t65_a_failed_calls_messages_are_no_parent() -> None:
    """Its retry has the same parent as it had, and what it showed of an answer is nobody's history; its own claim is given back."""
    world = World()
    c1 = world.ask(OPENING, [51, 99])
    dead = world.ask([*OPENING, c1.answer, user(V)], [52], error=ProxyError("engine_error", "reset"))
    assert world.lineage.nodes[c1.id].claims == 0
    retry = world.ask([*OPENING, c1.answer, user(V)], [53, 99])
    partial = world.ask([*OPENING, c1.answer, user(V), assistant("52"), user(V)], [54, 99])
    assert (retry.parent_id, partial.parent_id) == (c1.id, c1.id)
    assert dead.id not in world.lineage.nodes
    assert dead.parent_id == c1.id


def test_t40_an_aborted_answer_is_never_gone_on_from_as_if_it_had_ended() -> None:
    """A half answer in the history is text behind the call before it."""
    world = World()
    c1 = world.ask(OPENING, [51, 99])
    cut = world.ask([*OPENING, c1.answer, user(V)], [53, 54], abort="client_left")
    after = world.ask([*OPENING, c1.answer, user(V), assistant("53 54"), user(V)], [55, 99])
    assert after.parent_id == c1.id
    assert cut.record.state == "aborted"


def test_t80_b130_a_new_attempt_starts_with_nothing() -> None:
    """Another lease knows no call of this one, whatever is asked."""
    first = World()
    c1 = first.ask(OPENING, [51, 99])
    second = World(lease_id="lease-2")
    d1 = second.ask([*OPENING, c1.answer, user(V)], [52, 99])
    assert d1.told == ("root", "session_start")
    named = second.ask([*OPENING, c1.answer, user(V)], [52, 99], turn_ids=("", "", c1.id, ""))
    assert named.parent_id == ""


def test_b121_interleaved_sub_agents_keep_their_own_lines() -> None:
    """Main line and two sub-agents, in turns: each call hangs on its own; a shared beginning of prompts is no link."""
    world = World()
    m1 = world.ask([user("1")], [43, 99])
    a1 = world.ask([user("50")], [51, 99])
    b1 = world.ask([user("50 60")], [61, 99])
    a2 = world.ask([user("50"), a1.answer, user("52")], [53, 99])
    m2 = world.ask([user("1"), m1.answer, user("4")], [45, 99])
    b2 = world.ask([user("50 60"), b1.answer, tool("62", b1.answer["tool_calls"][0]["id"])], [53, 99])
    assert [x.parent_id for x in (a2, m2, b2)] == [a1.id, m1.id, b1.id]
    assert b1.parent_id == ""


def test_b122_one_call_may_have_several_branches() -> None:
    """Y and Z go on from X, W from Y."""
    world = World()
    x = world.ask([user("1")], [42, 99])
    y = world.ask([user("1"), x.answer, user("3")], [44, 99])
    z = world.ask([user("1"), x.answer, user("3")], [45, 99])
    w = world.ask([user("1"), x.answer, user("3"), y.answer, user("6")], [47, 99])
    assert [y.parent_id, z.parent_id, w.parent_id] == [x.id, x.id, y.id]


def test_b112_thinking_is_kept_or_left_to_the_template_as_the_task_says() -> None:
    """Both modes exist, both are labelled; under `template` the new question begins a second line."""
    kept, left = World(), World(history="template")
    for world, parent in ((kept, True), (left, False)):
        c1 = world.ask([user("1")], [71, 61, 99])
        c2 = world.ask([user("1"), c1.answer, tool(R, c1.answer["tool_calls"][0]["id"])], [51, 99])
        c3 = world.ask([*c2.messages, c2.answer, user(V)], [52, 99])
        assert c2.parent_id == c1.id
        assert bool(c3.parent_id) is parent
        assert c3.record.notes["history"] == world.history
    assert c3.told == ("root", "history_thinking_removed")


def test_b113_thinking_in_the_content_is_the_thinking() -> None:
    """An opened block belongs to the prompt; the answer comes back as one text, or in two fields: both are the sampled turn."""
    world = World()
    parsed = ToyRenderer().parse([51, 99]).__class__(text="4", reasoning="2+2", tool_calls=(), status="ok")
    c1 = world.ask(OPENING, [51, 99], parsed=parsed)
    for sent in (
        assistant("<think>\n2+2\n</think>\n\n4"),
        assistant("2+2\n</think>\n\n4"),
        assistant("4", reasoning_content="2+2"),
    ):
        assert world.lineage.find([*OPENING, sent, user(V)], head_of("", {})).parent_id == c1.id
    other = assistant("3+1\n</think>\n\n4")
    assert world.lineage.find([*OPENING, other, user(V)], head_of("", {})).parent_id == ""


# --- from the log


def test_b125_t37_a_lineage_from_the_log_is_the_same_in_any_order() -> None:
    """All orders of the records, one repeated, find the same parents as the live lineage."""
    world = World()
    c1 = world.ask(OPENING, [51, 52, 99])
    s1 = world.ask([*OPENING, c1.answer, tool(R), user(V)], [57, 99])
    c2 = world.ask([*OPENING, c1.answer, tool(R)], [53, 54, 99])
    c3 = world.ask([*OPENING, c1.answer, tool(R), c2.answer, user(V)], [55, 99])
    asks = [[*x.messages, x.answer, user(V)] for x in (c1, s1, c2, c3)]
    for order in itertools.permutations(world.log):
        lineage = Lineage("p")
        for record in (*order, order[0]):
            lineage.add(record)
        assert [lineage.find(ask, head_of("", {})).parent_id for ask in asks] == [x.id for x in (c1, s1, c2, c3)]
        assert lineage.nodes[c1.id].claims == 2 + 1  # its two children, and the question above


def test_checkpoints_stand_alone_on_the_log() -> None:
    """Call 64 holds prompt, messages and tools in full, and still names its parent; the next goes on as a delta."""
    world = World()
    messages, last = list(OPENING), world.ask(OPENING, [51, 99], tools=TOOLS)
    while world.seq < 70:
        messages = [*messages, last.answer, user(V)]
        last = world.ask(messages, [51 + world.seq % 8, 99], tools=TOOLS)
    by_seq = {record.call_seq: record for record in world.log}
    assert [seq for seq, record in by_seq.items() if record.is_checkpoint] == [64]
    whole = by_seq[64]
    assert (whole.prefix_len, whole.messages_prefix, whole.prefix_digest) == (0, 0, "")
    assert len(whole.suffix_ids) == 4 * whole.prompt_len
    assert len(whole.messages) == 2 + 2 * 63
    assert whole.tools == TOOLS
    assert whole.parent_id == by_seq[63].completion_id
    assert [seq for seq, record in by_seq.items() if record.tools] == [1, 64]
    assert by_seq[65].messages_prefix == len(whole.messages) + 1
    world.reaches()
    rebuilt = world.rebuilt()
    assert rebuilt.find([*messages, last.answer, user(V)], head_of(whole.tools_digest, {})).parent_id == last.id


def test_a_gap_makes_unknown_answers_ambiguous() -> None:
    """While a predecessor's calls may be missing, only a direct continuation has a parent; a first question is a root."""
    world = World()
    c1 = world.ask(OPENING, [51, 99])
    world.lineage.has_gap = True
    direct = world.ask([*OPENING, c1.answer, user(V)], [52, 99])
    missing = world.ask([*OPENING, c1.answer, user(V), assistant("58"), user(V)], [53, 99])
    unknown = world.ask([user("5"), assistant("58"), user(V)], [53, 99])
    first = world.ask([user("6")], [53, 99])
    assert direct.parent_id == c1.id
    assert missing.told == unknown.told == ("ambiguous", "lineage_gap")
    assert first.told == ("root", "new_conversation")


def test_what_a_lineage_holds_is_counted() -> None:
    """Each call adds its tokens and texts to the size, whatever the conversation's length."""
    world = World()
    last = world.ask(OPENING, [51, 99])
    messages = list(OPENING)
    sizes = [world.lineage.size_bytes]
    for _ in range(20):
        messages = [*messages, last.answer, user(V)]
        last = world.ask(messages, [51, 99])
        sizes.append(world.lineage.size_bytes)
    steps = {b - a for a, b in itertools.pairwise(sizes)}
    assert len(steps) == 1
    assert steps.pop() < 10_000


def test_requests_that_became_no_call_are_counted_while_they_are_kept() -> None:
    """The latest requests stay for comparison, whatever became of them: their texts weigh, and leave with them."""
    world = World()
    world.ask(OPENING, [51, 99])
    before, empty = world.lineage.size_bytes, head_of("", {})
    asked = [[user(f"{n} " * 5_000)] for n in range(10, 20)]
    world.lineage.find(asked[0], empty)
    assert 10_000 < world.lineage.size_bytes - before < 20_000
    world.lineage.find([*asked[0], assistant("51"), user("7 " * 2_500)], empty)  # in its place, not beside it
    assert 15_000 < world.lineage.size_bytes - before < 25_000
    for messages in asked[1:]:
        world.lineage.find(messages, empty)
    assert 40_000 < world.lineage.size_bytes - before < 65_000


def test_a_request_that_was_followed_before_finds_the_same() -> None:
    """Digests made in a thread, while other requests came in between, lead to the same parent."""
    world = World()
    c1 = world.ask(OPENING, [51, 99])
    messages = [*OPENING, c1.answer, user(V)]
    followed = world.lineage.follow(messages)
    world.ask([*OPENING, c1.answer, user("5")], [53, 99])
    head = world.lineage.nodes[c1.id].head
    found = world.lineage.find(messages, head, (), followed)
    assert (found.parent_id, found.new_from, found.trail) == (c1.id, len(OPENING) + 1, followed.trail)
    assert world.lineage.follow([*messages, assistant("58")]).base is followed.trail


def test_an_answer_without_its_prompts_ids_is_never_gone_on_from() -> None:
    """A text-in engine told the output's ids alone: behind them the whole earlier conversation would be missing from the prompt."""
    world = World()
    call = world.begin(OPENING)
    call.is_text_in = True
    stand_alone(call)
    c1 = world.end(call, [51, 52, 99])
    assert c1.record.prompt_len == 0
    c2 = world.ask([*OPENING, c1.answer, user(V)], [53, 99])
    assert c2.prompt == [*P1, 51, 52, 99, 2, 22, 99, 3]
    assert (c2.told, c2.parent_id) == (("root", "retokenized"), "")


def test_an_answer_with_swallowed_ids_is_never_gone_on_from() -> None:
    """The engine counted other tokens than it told: what is missing of them would be missing from the next prompt."""
    world = World()
    c1 = world.ask(OPENING, [51, 52, 99])
    broken = World()
    broken.lineage.add(replace(c1.record, untrainable_reason="ids_incomplete"))
    c2 = broken.ask([*OPENING, c1.answer, user(V)], [53, 99])
    assert (c2.told, c2.parent_id) == (("root", "retokenized"), "")


def test_images_that_arent_base64_differ_in_every_character() -> None:
    """A drawing as text in a data URL: what base64 has no letter for counts too."""
    world = World()
    parts = [{"type": "image_url", "image_url": {"url": "data:image/svg+xml,ab.cd"}}]
    c1 = world.ask([user(parts)], [51, 99])
    other = [{"type": "image_url", "image_url": {"url": "data:image/svg+xml,abcd"}}]
    assert world.ask([user(other), c1.answer, user(V)], [52, 99]).parent_id == ""
    assert world.ask([user(parts), c1.answer, user(V)], [52, 99]).parent_id == c1.id


def test_one_image_in_either_alphabet_of_base64_is_one() -> None:
    """Some clients write the one that is safe in URLs, or leave the padding out."""
    world = World()
    data = b"\xfb\xef\xff\xfe"
    sent = base64.b64encode(data).decode()
    again = base64.urlsafe_b64encode(data).decode().rstrip("=")
    assert sent != again
    of = [
        user([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{text}"}}]) for text in (sent, again)
    ]
    c1 = world.ask([of[0]], [51, 99])
    assert world.ask([of[1], c1.answer, user(V)], [52, 99]).parent_id == c1.id
