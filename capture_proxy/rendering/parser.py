"""Reads an output with `<think>` and `<tool_call>` marks as it is sampled.

Rules: newlines around thinking are format, not content; white space before a well-formed tool call is dropped; everything else
comes out exactly as sampled, also a mark that was begun and never finished.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from capture_proxy.rendering.base import ParsedCall, ParsedReply
from capture_proxy.rendering.calls import OPEN, CallFormat, last_opening
from capture_proxy.rendering.detokenizer import Detokenizer
from capture_proxy.rendering.stops import StopCutter, partial_match
from capture_proxy.reply import ReasoningDelta, TextDelta

THINK = "<think>"
THINK_END = "</think>"

Deltas: TypeAlias = list[ReasoningDelta | TextDelta]


class MarkParser:
    """A `ReplyParser` for the mark formats. Per token: one decoding step and, mostly, one search for a `<`."""

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        is_in_reasoning: bool = False,
        call_format: CallFormat | None,
        tools: Sequence[Mapping[str, Any]] = (),
        stop: Sequence[str] = (),
    ) -> None:
        self._detokenizer = detokenizer
        self._call_format = call_format
        self._tools = tools
        self._cutter = StopCutter(stop) if stop else None
        self._state: Literal["start", "reasoning", "draft", "text", "held"] = (
            "reasoning" if is_in_reasoning else "start"
        )
        self._pending = ""  # seen, but it may still turn out to be format
        self._space: list[str] = []  # white space behind it, which only what follows can decide on
        self._is_trimming = is_in_reasoning  # drop newlines until the first character of content
        self._ends: list[int] = []  # characters decoded after each token
        self._decoded = 0
        self._pushed = 0
        self._held_at = 0
        self._held: list[str] = []
        self._draft_tail = ""
        self._reasoning_end_at: int | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []

    @property
    def matched_stop(self) -> str | None:
        """The stop string that was found."""
        return self._cutter.matched if self._cutter is not None else None

    def feed(self, ids: Sequence[int]) -> Deltas:
        """What the new ids let through."""
        out: Deltas = []
        for token_id in ids:
            piece = self._detokenizer.step(token_id)
            self._decoded += len(piece)
            self._ends.append(self._decoded)
            if piece:
                self._take(piece, out)
        return out

    def finish(self, *, is_cut: bool = False) -> tuple[Deltas, ParsedReply]:
        """The remaining deltas and the parsed whole."""
        out: Deltas = []
        tail = self._detokenizer.flush()
        self._decoded += len(tail)
        if self._ends:
            self._ends[-1] = self._decoded
        if tail:
            self._take(tail, out)
        if self._cutter is not None and (rest := self._cutter.flush()):
            self._push(rest, out)
        if self._space:
            self._scan(self._take_space(), out)
        calls: tuple[ParsedCall, ...] = ()
        is_broken = False
        if self._state == "reasoning":
            self._emit_reasoning(self._pending, out)
        elif self._state in {"held", "draft"}:
            calls, is_broken = self._finish_held(out, is_cut=is_cut)
        else:
            self._emit_text(self._pending, out)
        self._pending = ""
        return out, ParsedReply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=calls,
            status="tool_parse_error" if is_broken else "ok",
            reasoning_tokens=self._count_reasoning(),
        )

    def _take(self, piece: str, out: Deltas) -> None:
        if self._cutter is not None:
            piece = self._cutter.feed(piece)
        if piece:
            self._push(piece, out)

    def _push(self, piece: str, out: Deltas) -> None:
        self._pushed += len(piece)
        if self._state in {"start", "reasoning", "text"} and (self._space or piece.isspace()):
            # Looked at once, when its end is known: a model that repeats a newline for ever mustn't cost the square of them.
            self._space.append(piece)
            if piece.isspace() and (self._state != "text" or self._call_format is not None):
                return
            piece = self._take_space()
        self._scan(piece, out)

    def _take_space(self) -> str:
        taken = "".join(self._space)
        self._space = []
        return taken

    def _scan(self, piece: str, out: Deltas) -> None:
        if self._state == "text" and not self._pending and not self._is_trimming:
            if self._call_format is None or ("<" not in piece and not piece[-1].isspace()):
                self._emit_text(piece, out)
                return
        elif self._state == "held":
            self._held.append(piece)
            return
        elif self._state == "draft":
            self._scan_draft(piece)
            if self._state == "draft":
                return
            piece = ""
        self._pending += piece
        if self._state == "start":
            self._scan_start()
        if self._state == "reasoning":
            self._scan_reasoning(out)
        if self._state == "text":
            self._scan_text(out)

    def _scan_start(self) -> None:
        """Thinking can only open the output; until something else is seen, everything waits."""
        body = self._pending.lstrip()
        if body.startswith(THINK):
            self._state = "reasoning"
            self._is_trimming = True
            self._pending = body[len(THINK) :]
        elif not THINK.startswith(body):
            self._state = "text"

    def _scan_reasoning(self, out: Deltas) -> None:
        if self._is_trimming:
            self._pending = self._pending.lstrip("\n")
            self._is_trimming = not self._pending
        end = self._pending.find(THINK_END)
        opening = self._pending.find(OPEN) if self._call_format is not None else -1
        if opening >= 0 and end < 0:
            self._hold_from(opening, self._emit_reasoning, "draft", out)
            return
        if end >= 0:
            self._emit_reasoning(self._pending[:end].rstrip("\n"), out)
            self._pending = self._pending[end + len(THINK_END) :]
            self._reasoning_end_at = self._pushed - len(self._pending)
            self._state = "text"
            self._is_trimming = True
            return
        keep = len(self._pending) - max(partial_match(self._pending, mark) for mark in (THINK_END, OPEN))
        keep = len(self._pending[:keep].rstrip())
        self._emit_reasoning(self._pending[:keep], out)
        self._pending = self._pending[keep:]

    def _scan_text(self, out: Deltas) -> None:
        if self._is_trimming:
            self._pending = self._pending.lstrip("\n")
            self._is_trimming = not self._pending
        if self._call_format is None:
            self._emit_text(self._pending, out)
            self._pending = ""
            return
        opening = self._pending.find(OPEN)
        if opening >= 0:
            self._hold_from(opening, self._emit_text, "held", out)
            return
        keep = len(self._pending) - partial_match(self._pending, OPEN)
        keep = len(self._pending[:keep].rstrip())
        self._emit_text(self._pending[:keep], out)
        self._pending = self._pending[keep:]

    def _scan_draft(self, piece: str) -> None:
        """A call inside thinking that is closed later was only a draft, and is thinking after all."""
        self._held.append(piece)
        if THINK_END in self._draft_tail + piece:
            self._pending += "".join(self._held)
            self._held = []
            self._state = "reasoning"
        self._draft_tail = (self._draft_tail + piece)[-len(THINK_END) :]

    def _hold_from(
        self, opening: int, emit: Callable[[str, Deltas], None], state: Literal["draft", "held"], out: Deltas
    ) -> None:
        """Everything from a call's opening mark on waits for the end; the white space before it waits too."""
        before = self._pending[:opening]
        shown = before.rstrip()
        emit(shown, out)
        self._held_at = self._pushed - (len(self._pending) - opening)
        self._held = [self._pending[opening:]]
        self._draft_tail = self._held[0][-len(THINK_END) :]
        self._pending = before[len(shown) :]
        self._state = state

    def _finish_held(self, out: Deltas, *, is_cut: bool) -> tuple[tuple[ParsedCall, ...], bool]:
        """(calls, whether what looked like a call isn't one)."""
        held = "".join(self._held)
        assert self._call_format is not None
        found = self._call_format(held, self._tools)
        cut_at = last_opening(held) if is_cut and found is None else -1
        if cut_at > 0 and (found := self._call_format(held[:cut_at], self._tools)) is not None:
            found = found[0], found[1] + held[cut_at:]
        if found is None:
            (self._emit_text if self._state == "held" else self._emit_reasoning)(self._pending + held, out)
            return (), True
        if self._state == "draft":  # thinking that was never closed: the call closes it
            self._reasoning_end_at = self._held_at
        calls, rest = found
        if rest:
            self._emit_text(self._pending + rest, out)
        spans = [self._span(call.start, call.end) for call in calls]
        return tuple(ParsedCall(c.name, c.arguments, span) for c, span in zip(calls, spans, strict=True)), cut_at > 0

    def _span(self, start: int, end: int) -> tuple[int, int]:
        """The tokens that the characters [start, end) of the held text came from."""
        first = bisect_right(self._ends, self._held_at + start)
        last = bisect_left(self._ends, self._held_at + end)
        return first, min(last + 1, len(self._ends))

    def _count_reasoning(self) -> int:
        if self._reasoning_end_at is not None:
            return min(bisect_left(self._ends, self._reasoning_end_at) + 1, len(self._ends))
        return len(self._ends) if self._state in {"reasoning", "draft"} else 0

    def _emit_text(self, text: str, out: Deltas) -> None:
        if text:
            self._text.append(text)
            out.append(TextDelta(text))

    def _emit_reasoning(self, text: str, out: Deltas) -> None:
        if text:
            self._reasoning.append(text)
            out.append(ReasoningDelta(text))
