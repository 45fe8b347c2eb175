"""Outputs read as they are sampled."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture_proxy.rendering.base import ParsedReply
from capture_proxy.rendering.calls import read_json_calls
from capture_proxy.rendering.parser import MarkParser
from capture_proxy.reply import ReasoningDelta, TextDelta

CALL = '<tool_call>\n{"name": "ls", "arguments": {"p": "é"}}\n</tool_call>'


class Pieces:
    """A detokenizer whose tokens are given strings."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces

    def step(self, token_id: int) -> str:
        """The token's string."""
        return self._pieces[token_id]

    def flush(self) -> str:
        """Nothing is ever left."""
        return ""


def parse(
    text: str, *, size: int = 3, is_in_reasoning: bool = False, is_parsing_tools: bool = True, stop: Sequence[str] = ()
) -> tuple[list[ReasoningDelta | TextDelta], ParsedReply]:
    """All deltas and the whole, with the text cut into tokens of `size` characters; deltas must add up to the whole."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    call_format = read_json_calls if is_parsing_tools else None
    parser = MarkParser(Pieces(pieces), is_in_reasoning=is_in_reasoning, call_format=call_format, stop=stop)
    deltas = [delta for token_id in range(len(pieces)) for delta in parser.feed([token_id])]
    last, reply = parser.finish()
    deltas += last
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == reply.text
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) == reply.reasoning
    assert all(delta.text for delta in deltas)
    for call in reply.tool_calls:
        start, end = call.span
        assert "".join(pieces[start:end]).find("</tool_call>") >= 0
    return deltas, reply


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("sampled", "reasoning", "text", "calls"),
    [
        ("plain  text \n", "", "plain  text \n", 0),
        ("", "", "", 0),
        ("   ", "", "   ", 0),
        ("see <tool_", "", "see <tool_", 0),
        ("a < b <thin", "", "a < b <thin", 0),
        ("<thi", "", "<thi", 0),
        ("<think>\nplan\n</think>\n\n4", "plan", "4", 0),
        ("<think>\n\n</think>\n\nhi", "", "hi", 0),
        ("<think>\nnever closed\n", "never closed\n", "", 0),
        ("<think>cut </thi", "cut </thi", "", 0),
        (CALL, "", "", 1),
        (f"Ok.\n\n{CALL}\n{CALL}", "", "Ok.", 2),
        (f"<think>\nx\n</think>\n\n{CALL}", "x", "", 1),
        (f"{CALL}\nDone.", "", "Done.", 1),
        (f"<think>\nmaybe {CALL} or not\n</think>\nno", f"maybe {CALL} or not", "no", 0),
        (f"<think>\nforgot to close\n{CALL}", "forgot to close", "", 1),
        ("later <think> is text", "", "later <think> is text", 0),
    ],
)
def test_formats(sampled: str, reasoning: str, text: str, calls: int, size: int) -> None:
    """Thinking, text and calls part the same way however the tokens are cut; nothing is swallowed at the end."""
    _, reply = parse(sampled, size=size)
    assert (reply.reasoning, reply.text, len(reply.tool_calls), reply.status) == (reasoning, text, calls, "ok")


@pytest.mark.parametrize("sampled", [f"Ok. \n{CALL[:-5]}", f"{CALL}\n<tool_call>\nnope\n</tool_call>", "<tool_call>"])
def test_a_malformed_call_is_text_exactly_as_sampled(sampled: str) -> None:
    """No call, every character, and the status says so."""
    _, reply = parse(sampled)
    assert (reply.text, reply.tool_calls, reply.status) == (sampled, (), "tool_parse_error")


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_of_a_cut_reply_the_whole_calls_stay(size: int) -> None:
    """Only where the length cut it inside a later call; the cut one is text as sampled. A malformed call takes all with it."""
    text = f"Ok. {CALL}\n{CALL[:-5]}"
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    for is_cut, calls, shown in ((True, 1, "Ok. " + CALL[:-5]), (False, 0, text)):
        parser = MarkParser(Pieces(pieces), call_format=read_json_calls)
        for token_id in range(len(pieces)):
            parser.feed([token_id])
        _, reply = parser.finish(is_cut=is_cut)
        assert (len(reply.tool_calls), reply.text, reply.status) == (calls, shown, "tool_parse_error")
    parser = MarkParser(Pieces([f"{CALL}<tool_call>x</tool_call>"]), call_format=read_json_calls)
    parser.feed([0])
    assert parser.finish(is_cut=True)[1].tool_calls == ()


def test_a_malformed_call_in_open_thinking_stays_thinking() -> None:
    """It never was visible text."""
    _, reply = parse("<think>\nhm <tool_call>{")
    assert (reply.reasoning, reply.text, reply.status) == ("hm <tool_call>{", "", "tool_parse_error")


def test_nothing_of_a_call_leaves_before_the_end() -> None:
    """From the opening mark on everything is held, also text behind the call."""
    text = f"Ok.{CALL} tail"
    parser = MarkParser(Pieces(list(text)), call_format=read_json_calls)
    shown = "".join(delta.text for i in range(len(text)) for delta in parser.feed([i]))
    assert shown == "Ok."
    assert "".join(delta.text for delta in parser.finish()[0]) == "tail"


def test_text_streams_at_once() -> None:
    """A token without marks or white space at its end is out as soon as it is in."""
    parser = MarkParser(Pieces(["Hello", " world", "!"]), call_format=read_json_calls)
    assert [parser.feed([i]) for i in range(3)] == [[TextDelta("Hello")], [TextDelta(" world")], [TextDelta("!")]]


def test_a_prompt_that_opened_thinking() -> None:
    """The output begins inside the block: no opening mark is needed."""
    _, reply = parse("2+2\n</think>\n\n4", is_in_reasoning=True)
    assert (reply.reasoning, reply.text) == ("2+2", "4")
    assert reply.reasoning_tokens == 4  # `2+2`, `\n</`, `thi`, `nk>`


def test_forbidden_tools_leave_marks_as_text() -> None:
    """With tool_choice none the marks are ordinary characters and stream."""
    deltas, reply = parse(f"a {CALL}", is_parsing_tools=False)
    assert (reply.text, reply.tool_calls, reply.status) == (f"a {CALL}", (), "ok")
    assert len(deltas) > 5


def test_spans_name_the_tokens_of_a_call() -> None:
    """One token per character: the span is where the marks stand."""
    text = f"Hi {CALL}!"
    _, reply = parse(text, size=1)
    assert reply.tool_calls[0].span == (3, 3 + len(CALL))
    assert reply.tool_calls[0].arguments == '{"p": "é"}'


def test_a_stop_string_is_cut_everywhere() -> None:
    """Text before it is shown, the stop string and what follows is not."""
    assert parse("one STOP two", stop=["STOP"])[1].text == "one "
    assert parse("one STO", stop=["STOP"])[1].text == "one STO"
    assert parse(f"x{CALL}STOP", stop=["STOP"])[1].tool_calls[0].name == "ls"


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from(["a", " ", "\n", "<", "<think>", "</think>", "<tool_call>", "</tool_call>", '{"name":"f","arguments":{}}', CALL]), max_size=10).map("".join),
    st.integers(1, 12),
    st.booleans(),
)  # fmt: skip
def test_the_cut_never_matters(text: str, size: int, is_in_reasoning: bool) -> None:
    """For every output and every cut into tokens the reading is that of the whole."""
    _, whole = parse(text, size=10_000, is_in_reasoning=is_in_reasoning)
    _, cut = parse(text, size=size, is_in_reasoning=is_in_reasoning)
    assert (cut.text, cut.reasoning, cut.status) == (whole.text, whole.reasoning, whole.status)
    assert [(c.name, c.arguments) for c in cut.tool_calls] == [(c.name, c.arguments) for c in whole.tool_calls]


@pytest.mark.parametrize("is_in_reasoning", [False, True])
def test_endless_white_space_costs_no_square(is_in_reasoning: bool) -> None:
    """A policy that repeats a newline up to its limit is read as fast as any other, and nothing of it is lost."""
    count = 30_000
    parser = MarkParser(Pieces(["x", "\n"]), is_in_reasoning=is_in_reasoning, call_format=read_json_calls)
    before = time.process_time()
    parser.feed([0])
    for _ in range(count):
        assert parser.feed([1]) == []
    _, whole = parser.finish()
    assert time.process_time() - before < 5.0  # the square took minutes
    assert whole.text + whole.reasoning == "x" + "\n" * count
