"""The events of a `text/event-stream` body, cut from bytes that arrive in arbitrary pieces. Pure."""

from __future__ import annotations

from typing import Any, Final

import orjson

from capture_proxy.reply import ProxyError

DONE: Final = b"[DONE]"


class EventSplitter:
    """Collects bytes and gives the data of the events that are complete. Comments and other fields are dropped."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that `data` completes, in order."""
        text = self._rest + data
        if b"\r" in text:
            # A carriage return at the very end may be half of a line break.
            tail = b"\r" if text.endswith(b"\r") else b""
            text = text[: len(text) - len(tail)].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + tail
        *frames, self._rest = text.split(b"\n\n")
        return [found for frame in frames if (found := _data_of(frame))]


def _data_of(frame: bytes) -> bytes:
    if frame.startswith(b"data:") and b"\n" not in frame:  # what engines send
        return frame[5:].strip()
    lines = [line[5:].strip() for line in frame.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines)


def parse_event(data: bytes) -> dict[str, Any]:
    """An event's JSON object. Raises ProxyError(engine_error) for anything else."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise ProxyError("engine_error", f"the engine sent something that is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ProxyError("engine_error", "the engine sent an event that is no object")
    return value
