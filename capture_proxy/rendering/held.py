"""For formats that only the library can read: the whole output is parsed at its end, and nothing streams before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from capture_proxy.dialects.body import dump_arguments
from capture_proxy.rendering.base import ParsedCall, ParsedReply, ParseStatus
from capture_proxy.rendering.detokenizer import Detokenizer
from capture_proxy.rendering.parser import Deltas
from capture_proxy.rendering.stops import StopCutter
from capture_proxy.reply import ReasoningDelta, TextDelta


class HeldParser:
    """A `ReplyParser` that waits. `parse` is the library's parser for this prompt: ids → content, reasoning, tool calls."""

    def __init__(
        self, parse: Callable[[list[int]], Any], detokenizer: Detokenizer, *, stop: Sequence[str] = ()
    ) -> None:
        self._parse = parse
        self._detokenizer = detokenizer
        self._stop = stop
        self._ids: list[int] = []

    @property
    def matched_stop(self) -> str | None:
        """Nothing: stop strings are looked for at the end."""
        return None

    def feed(self, ids: Sequence[int]) -> Deltas:
        """Nothing yet."""
        self._ids += ids
        return []

    def finish(self, *, is_cut: bool = False) -> tuple[Deltas, ParsedReply]:
        """Everything at once. A reply with a call that isn't well-formed is the text that was sampled."""
        del is_cut  # the library says of no call where its text stands, so none can be kept beside a cut one
        try:
            parsed = self._parse(self._ids)
            calls = tuple(_call(call, len(self._ids)) for call in parsed.tool_calls)
            text, reasoning = str(parsed.content or ""), str(parsed.reasoning_content or "")
        except Exception:  # noqa: BLE001 - a parser of someone else's on text of a model's: broken is an answer too
            calls, text, reasoning = (None,), "", ""
        good = [call for call in calls if call is not None]
        is_broken = len(good) < len(calls)
        if is_broken:
            good, text, reasoning = [], "".join(map(self._detokenizer.step, self._ids)) + self._detokenizer.flush(), ""
        if self._stop:
            cutter = StopCutter(self._stop)
            text = cutter.feed(text) + cutter.flush()
        out: Deltas = [ReasoningDelta(reasoning)] if reasoning else []
        out += [TextDelta(text)] if text else []
        status: ParseStatus = "tool_parse_error" if is_broken else "ok"
        return out, ParsedReply(text=text, reasoning=reasoning, tool_calls=tuple(good), status=status)


def _call(call: Any, length: int) -> ParsedCall | None:
    """The library's call as ours, or None where it isn't well-formed."""
    if str(call.status) != "ok" or not call.name:
        return None
    arguments = call.arguments if isinstance(call.arguments, str) else dump_arguments(call.arguments or {})
    try:
        (call.name + arguments).encode()
    except UnicodeEncodeError:  # an escaped lone surrogate, which can't travel
        return None
    start, end = call.token_span or (0, length)
    return ParsedCall(call.name, arguments, (start, end))
