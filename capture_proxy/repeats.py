"""Answers that were finished and recorded, and never reached their client: a marked retry of the same request gets them again.

The engine isn't asked a second time, and there is no second record: that the answer arrived after all is a delivery fact.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Final

from capture_proxy import outcome
from capture_proxy.call import Call
from capture_proxy.engine_pool import EnginePool
from capture_proxy.generation import Generation
from capture_proxy.leases import Lease, LeaseState
from capture_proxy.recorder import Recorder
from capture_proxy.reply import ChatRequest, Finished, ReasoningDelta, TextDelta
from schemas import ids
from schemas.resolve import ID_BYTES

_KEPT: Final = 64
"""Over all sessions. A client tries again within seconds, or not at all."""

MAX_BYTES: Final = 64 << 20
"""Of all of them: many common requests, some large ones."""

REPEATED: Final = "repeated"
"""The delivery fact's reason."""


class Undelivered:
    """The latest answers that got lost on the way, by lease and request: no more than fit into `max_bytes` with their requests."""

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self._calls: OrderedDict[tuple[object, ...], Call] = OrderedDict()
        self._max_bytes = max_bytes

    @property
    def size_bytes(self) -> int:
        """About what the kept calls take in memory."""
        return sum(_size(call) for call in self._calls.values())

    def put(self, call: Call) -> None:
        """Keeps a call whose client left before the end; whether its answer is worth anything is seen when it is asked for."""
        self._drop_sealed()
        if call.lease.state is LeaseState.OPEN and not call.is_withheld and not call.is_terminal_sent:
            self._calls[_key(call.lease, call.request, call.stub.request_digest)] = call
            size = self.size_bytes
            while len(self._calls) > _KEPT or size > self._max_bytes:
                size -= _size(self._calls.popitem(last=False)[1])

    def _drop_sealed(self) -> None:
        """A call holds its prompt and its lease's whole lineage: none is kept that nobody can ask for."""
        for key in [key for key, call in self._calls.items() if call.lease.state is not LeaseState.OPEN]:
            del self._calls[key]

    def take(self, lease: Lease, request: ChatRequest, body: bytes) -> Call | None:
        """The lost answer to this very request, once; it counts as being delivered again."""
        call = self._calls.pop(_key(lease, request, ids.digest(body)), None)
        if call is None or not call.is_durable or not lease.deliver_again(call.call_seq):
            return None
        call.is_stream_begun = False
        call.delivery_reason = REPEATED
        return call


def _size(call: Call) -> int:
    return call.stub.request_bytes + ID_BYTES * len(call.prompt.ids)


def _key(lease: Lease, request: ChatRequest, digest: str) -> tuple[object, ...]:
    """One API says in the path, not in the body, which model is asked, and whether for a stream."""
    return lease.lease_id, lease.writer, request.dialect, request.model, request.stream, digest


class Repetition(Generation):
    """An answer that is there already: all of it at once."""

    def __init__(self, call: Call, recorder: Recorder) -> None:
        super().__init__(call, recorder, timeout_s=0.0)
        reply = outcome.reply(call)
        if reply.reasoning:
            self.events.put_nowait(ReasoningDelta(reply.reasoning))
        if reply.text:
            self.events.put_nowait(TextDelta(reply.text))
        self.events.put_nowait(Finished(reply))
        self.settled.set()

    def start(self, engines: EnginePool) -> asyncio.Task[None]:
        """Nothing runs."""
        del engines
        return asyncio.create_task(asyncio.sleep(0), name=f"repeat-{self.call.completion_id}")

    def give_up(self, reason: str) -> None:
        """Its record stands; only its delivery is in question."""
