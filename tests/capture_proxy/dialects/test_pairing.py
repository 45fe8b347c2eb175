"""Calls and results, repaired in fixed forms."""

from __future__ import annotations

import time
from typing import Any

from capture_proxy.dialects.body import Notes
from capture_proxy.dialects.pairing import NO_RESULT, ORPHAN, pair_tools


def _calls(*ids: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in ids],
    }


def _result(call_id: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def _user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def test_a_whole_history_is_untouched() -> None:
    """Nothing to repair, nothing noted; results keep their arrival order."""
    notes = Notes()
    history = [_user("go"), _calls("a", "b"), _result("b", "2"), _result("a", "1"), _user("next")]
    assert pair_tools([*history], notes) == history
    assert notes.sorted() == ()


def test_a_missing_result_is_filled_and_an_orphan_becomes_text() -> None:
    """An interrupted call gets the fixed result right behind it; a result without a call is user text in place."""
    notes = Notes()
    paired = pair_tools([_user("go"), _calls("t1"), _user("stop, do X"), _result("gone", "late")], notes)
    assert paired[2:] == [_result("t1", NO_RESULT), _user("stop, do X"), _user(f"{ORPHAN}\nlate")]
    assert len(notes.sorted()) == 2


def test_text_between_results_moves_behind_them() -> None:
    """All results directly follow the calls."""
    paired = pair_tools([_calls("a", "b"), _result("a", "1"), _user("mid"), _result("b", "2")], Notes())
    assert [message["role"] for message in paired] == ["assistant", "tool", "tool", "user"]


def test_equal_duplicates_collapse_and_different_ones_join() -> None:
    """Never two results with one id."""
    paired = pair_tools([_calls("a"), _result("a", "x"), _result("a", "x"), _result("a", "y")], Notes())
    assert paired[1:] == [_result("a", "x\ny")]


def test_two_calls_with_one_id_are_told_apart() -> None:
    """Results pair by occurrence, the second call gets an id of its own, and no inner mark stays in the messages."""
    notes = Notes()
    paired = pair_tools([_calls("e", "e"), _result("e", "1"), _result("e", "2")], notes)
    ids = [call["id"] for call in paired[0]["tool_calls"]]
    assert ids == ["e", "e_2"]
    assert paired[1:] == [_result("e", "1"), _result("e_2", "2")]
    assert set(paired[0]["tool_calls"][0]) == {"id", "type", "function"}
    assert notes.sorted() == ("repaired: tool calls with one id",)


def test_results_without_ids_pair_by_position() -> None:
    """A client of the time before ids still gets its results to its calls."""
    paired = pair_tools([_calls("", ""), _result("", "1"), _result("", "2")], Notes())
    assert [message["tool_call_id"] for message in paired[1:]] == ["call_0", "call_1"]


def test_a_repair_does_not_change_earlier_messages_later() -> None:
    """The repaired history is a prefix of the repaired longer history."""
    history = [_user("go"), _calls("t1"), _user("stop")]
    longer = [*history, {"role": "assistant", "content": "ok"}, _user("more")]
    assert pair_tools(longer, Notes())[:4] == pair_tools(history, Notes())


def test_a_renamed_call_never_gets_another_calls_id() -> None:
    """Two calls with one id, and a third that is named just as the second one would be: each keeps its own result."""
    history = [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": sent, "type": "function", "function": {"name": "f", "arguments": "{}"}}
                for sent in ("x", "x", "x_2")
            ],
        },
        *(
            {"role": "tool", "tool_call_id": sent, "content": said}
            for sent, said in (("x_2", "c"), ("x", "a"), ("x", "b"))
        ),
    ]
    paired = pair_tools(history, Notes())
    ids = [call["id"] for call in paired[0]["tool_calls"]]
    assert len(set(ids)) == 3
    assert {m["tool_call_id"]: m["content"] for m in paired[1:]} == dict(zip(ids, "abc", strict=True))


def test_pairing_takes_time_by_the_number_of_results_not_by_its_square() -> None:
    """Ten thousand calls in one answer, with and without ids, in the wrong order: far below the test's time limit."""
    count = 10_000
    calls = [{"id": f"c{i}", "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in range(count)]
    results = [{"role": "tool", "tool_call_id": f"c{i}", "content": str(i)} for i in reversed(range(count))]
    started_s = time.process_time()
    paired = pair_tools([{"role": "assistant", "content": "", "tool_calls": calls}, *results], Notes())
    assert [m["content"] for m in paired[1:4]] == ["9999", "9998", "9997"]
    nameless = [{**call, "id": ""} for call in calls]
    paired = pair_tools(
        [{"role": "assistant", "content": "", "tool_calls": nameless}, *({**m, "tool_call_id": ""} for m in results)],
        Notes(),
    )
    assert paired[-1]["tool_call_id"] == "call_9999"
    assert time.process_time() - started_s < 2.0
