"""What breaks a prefix with the real Qwen3 tokenizer and template: token by token it is one line, from text it is two."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from capture_proxy.rendering import Renderer
from tests.capture_proxy.lineage.toy import Asked, World, one_line, tool

TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]
START = [{"role": "system", "content": "S"}, {"role": "user", "content": "go"}]
RESULT = "a.txt"


def echoed(asked: Asked) -> dict[str, Any]:
    """The answer as a careful client sends it back."""
    return asked.answer


def without_thinking(asked: Asked) -> dict[str, Any]:
    """A client that knows no thinking."""
    return {key: value for key, value in asked.answer.items() if key != "reasoning_content"}


def dumped_anew(asked: Asked) -> dict[str, Any]:
    """A client that parses arguments and writes them again, keys in another order."""
    calls = [
        {
            **call,
            "function": {
                "name": call["function"]["name"],
                "arguments": json.dumps(dict(reversed(json.loads(call["function"]["arguments"]).items()))),
            },
        }
        for call in asked.answer["tool_calls"]
    ]
    return {**asked.answer, "tool_calls": calls}


@dataclass(frozen=True)
class Case:
    """What was sampled (text, or pieces that are encoded one by one), what follows, how the client sends the answer back."""

    sampled: str | list[str]
    follows: str = "user"
    sent: Callable[[Asked], dict[str, Any]] = echoed
    is_kept_from_text: bool = False
    reason: str = "retokenized"


def call_of(arguments: str) -> str:
    """A sampled call."""
    return f'<tool_call>\n{{"name": "bash", "arguments": {arguments}}}\n</tool_call>'


THOUGHT = "<think>\nhmm\n</think>\n\n"
CASES = {
    "thinking_echoed_in_a_tool_step": Case(THOUGHT + call_of('{"cmd": "ls"}'), "tool", is_kept_from_text=True),
    "thinking_dropped_by_the_client": Case(
        THOUGHT + call_of('{"cmd": "ls"}'), "tool", without_thinking, reason="history_thinking_removed"
    ),
    "a_question_after_thinking": Case(THOUGHT + "Done.", reason="history_thinking_removed"),
    "an_empty_thinking_block": Case("<think>\n\n</think>\n\nDone.", reason="history_thinking_removed"),
    "compact_arguments": Case(call_of('{"cmd":"ls"}'), "tool"),
    "an_escaped_letter": Case(call_of('{"cmd": "\\u00e9"}'), "tool"),
    "arguments_dumped_anew": Case(call_of('{"b": 1,  "a": "ü", "n": 3.0}'), "tool", dumped_anew),
    "space_before_a_call": Case("Look.\n\n" + call_of('{"cmd": "ls"}'), "tool"),
    "a_trailing_space": Case("Done. ", sent=lambda asked: {**asked.answer, "content": "Done."}),
    "another_split_of_the_same_text": Case(["l", "s", " done"]),
    "a_plain_answer": Case("Done.", is_kept_from_text=True),
}


def run(renderer: Renderer, case: Case, history: str) -> tuple[World, Asked, Asked]:
    """Two turns."""
    world = World(renderer=renderer, history=history)
    pieces = [case.sampled] if isinstance(case.sampled, str) else case.sampled
    ids = [i for piece in pieces for i in renderer.encode(piece)]
    assert renderer.end_of_turn_id is not None
    first = world.ask(START, [*ids, renderer.end_of_turn_id], tools=TOOLS)
    if case.follows == "tool":
        new = tool(RESULT, first.answer["tool_calls"][0]["id"])
    else:
        new = {"role": "user", "content": "more"}
    second = world.ask([*START, case.sent(first), new], [renderer.end_of_turn_id], tools=TOOLS)
    return world, first, second


@pytest.mark.parametrize("name", CASES)
def test_token_in_it_is_one_line(renderer: Renderer, name: str) -> None:
    """The second prompt begins with the first and its sampled tokens, and goes on as the template prints the new messages."""
    world, first, second = run(renderer, CASES[name], "sampled")
    assert second.told == ("resolved", "")
    assert one_line(world.reaches(), first, second)
    tail = renderer.decode(second.prompt[second.record.prefix_len :])
    inner = f"<tool_response>\n{RESULT}\n</tool_response>" if CASES[name].follows == "tool" else "more"
    assert tail == f"\n<|im_start|>user\n{inner}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("name", CASES)
def test_from_text_it_is_two_lines_each_in_its_own_context(renderer: Renderer, name: str) -> None:
    """With `history = template` the prompt is the rendered text, and only the cases that survive it have a parent."""
    case = CASES[name]
    world, first, second = run(renderer, case, "template")
    assert one_line(world.reaches(), first, second) is case.is_kept_from_text
    if case.is_kept_from_text:
        assert (second.told, second.parent_id) == (("resolved", ""), first.id)
    else:
        assert (second.told, second.parent_id) == (("root", case.reason), "")
    assert second.prompt == renderer.render(second.call.request.messages, TOOLS, {})


def test_an_answer_cut_inside_its_thinking_goes_on(renderer: Renderer) -> None:
    """The turn is closed by the canonical end, and the half thought stays."""
    world = World(renderer=renderer)
    first = world.ask(START, renderer.encode("<think>\nhalf a thou"), finish="length")
    second = world.ask([*START, first.answer, {"role": "user", "content": "go on"}], [renderer.end_of_turn_id or 0])
    assert one_line(world.reaches(), first, second)
    tail = renderer.decode(second.prompt[second.record.prefix_len :])
    assert tail.removeprefix("</think>").lstrip().startswith("<|im_end|>\n<|im_start|>user\ngo on<|im_end|>")


def test_a_prompt_that_skips_thinking_goes_on(template: Renderer) -> None:
    """The empty block that switched thinking off is part of the first prompt, and stays there; from text it vanishes."""
    renderer = template
    world = World(renderer=renderer)
    options = {"enable_thinking": False}
    end = renderer.end_of_turn_id or 0
    first = world.ask(START, [*renderer.encode("Hi."), end], template_kwargs=options)
    second = world.ask([*START, first.answer, {"role": "user", "content": "more"}], [end], template_kwargs=options)
    assert one_line(world.reaches(), first, second)
    text = World(renderer=renderer, history="template")
    one = text.ask(START, [*renderer.encode("Hi."), end], template_kwargs=options)
    two = text.ask([*START, one.answer, {"role": "user", "content": "more"}], [end], template_kwargs=options)
    assert two.told == ("root", "history_thinking_removed")
