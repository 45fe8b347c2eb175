"""The faults: what the engine does on a task's second model call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

STALL_S = 70.0
"""Longer than the least patient harness waits for headers (60 s)."""
RETRY_AFTER_S = 7
"""Longer than any harness' own first pause, so that those which obey can be told from those which don't."""

Kind = Literal["refuse", "stall", "cut", "say"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault.

    `refuse`: the status instead of an answer. `stall`: nothing for so long, then the answer. `cut`: the connection is reset in the
    middle of the answer. `say`: a whole reply, but a bad one (`reply`). `in_call`: the second answer is a tool call, not a text.
    """

    name: str
    title: str
    kind: Kind
    status: int = 200
    retry_after: int | None = None
    in_call: bool = False
    reply: Literal["empty", "malformed", "length"] | None = None


FAULTS: tuple[Fault, ...] = (
    Fault(
        name="429_retry_after", title="429 with `Retry-After: 7`", kind="refuse", status=429, retry_after=RETRY_AFTER_S
    ),
    Fault(name="429", title="429 without `Retry-After`", kind="refuse", status=429),
    Fault(name="500", title="500", kind="refuse", status=500),
    Fault(name="503", title="503", kind="refuse", status=503),
    Fault(name="stall", title="nothing for 70 s, not even headers, then the answer", kind="stall"),
    Fault(name="cut_text", title="the stream breaks off in the middle of a text", kind="cut"),
    Fault(name="cut_arguments", title="the stream breaks off inside a tool call's arguments", kind="cut", in_call=True),
    Fault(name="empty", title="a finished reply without a single character", kind="say", reply="empty"),
    Fault(name="malformed_call", title="a tool call that isn't JSON", kind="say", reply="malformed", in_call=True),
    Fault(name="length_in_call", title="the length limit ends a tool call", kind="say", reply="length", in_call=True),
)
BY_NAME = {fault.name: fault for fault in FAULTS}
FAULTY_CALL = 2
"""Which model call of a session meets the fault."""
