"""Formats that only the library reads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from capture_proxy.rendering.held import HeldParser
from capture_proxy.reply import ReasoningDelta, TextDelta


class Letters:
    """Token n is the n-th letter."""

    def step(self, token_id: int) -> str:
        """The letter."""
        return chr(97 + token_id)

    def flush(self) -> str:
        """Nothing is left."""
        return ""


def parser(*calls: Any, content: str = "hi", reasoning: str | None = "r", stop: tuple[str, ...] = ()) -> HeldParser:
    """A parser whose library always reads this."""
    return HeldParser(
        lambda ids: SimpleNamespace(content=content, reasoning_content=reasoning, tool_calls=list(calls)),
        Letters(),
        stop=stop,
    )


def call(status: str = "ok", arguments: Any = None, name: str | None = "f") -> Any:
    """A call as the library gives it."""
    return SimpleNamespace(status=status, name=name, arguments=arguments, token_span=(1, 2))


def test_everything_comes_at_the_end() -> None:
    """Nothing streams; calls keep their spans and get JSON arguments."""
    held = parser(call(arguments={"a": "ü"}), call(arguments='{"b":  1}'), call())
    assert held.feed([0, 1]) == []
    deltas, reply = held.finish()
    assert deltas == [ReasoningDelta("r"), TextDelta("hi")]
    assert [c.arguments for c in reply.tool_calls] == ['{"a":"ü"}', '{"b":  1}', "{}"]
    assert (reply.tool_calls[0].span, reply.status) == ((1, 2), "ok")


def test_a_broken_call_makes_the_output_text() -> None:
    """Also a library that raises: the client gets what was sampled."""
    for broken in (parser(call(), call("invalid_json")), parser(call(name=None))):
        broken.feed([0, 1, 2])
        deltas, reply = broken.finish()
        assert (deltas, reply.text, reply.tool_calls, reply.status) == (
            [TextDelta("abc")],
            "abc",
            (),
            "tool_parse_error",
        )

    def raising(ids: list[int]) -> Any:
        raise RuntimeError("no")

    failing = HeldParser(raising, Letters())
    failing.feed([3])
    assert failing.finish()[1].text == "d"


def test_stop_strings_are_cut() -> None:
    """As in a streamed output."""
    assert parser(content="one STOP", reasoning=None, stop=("STOP",)).finish()[1].text == "one "
