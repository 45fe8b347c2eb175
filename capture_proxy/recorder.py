"""Writes what happens to leases and calls into the spool, and says when it is durable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import structlog

from capture_proxy import records
from capture_proxy.call import Call, Prompt
from capture_proxy.leases import CallEnd, Denial, Lease, LeaseBook, LeaseRefusalError, LeaseState
from capture_proxy.lineage.book import Lineages
from capture_proxy.lineage.placing import is_checkpoint
from capture_proxy.lineage.side_calls import AUX
from capture_proxy.ports import now_ms
from capture_proxy.rejections import Rejections
from capture_proxy.reply import ChatRequest, ProxyError
from capture_proxy.sealing import Seals
from capture_proxy.spool import Durability, Spool, SpoolRefusalError
from capture_proxy.spool.relay import Entry
from schemas.codec import Encoded, encode
from schemas.records import Boundary, CompletionRecord, CompletionState

log = structlog.get_logger(__name__)

LARGE_BYTES: Final = 1 << 20
"""Of a request: from here on, what costs time in proportion to it is done in a thread."""


class Recorder:
    """The one way to the log: leases open and seal here, and every started call gets its one record here.

    `on_abort(lease, reason)` is called when a seal can't wait for running calls any longer.
    """

    def __init__(
        self,
        spool: Spool,
        book: LeaseBook,
        *,
        proxy_id: str,
        incarnation: str,
        lineages: Lineages | None = None,
        seal_drain_s: float = 10.0,
        seal_delivery_s: float = 5.0,
    ) -> None:
        self.spool = spool
        self.book = book
        self.lineages = Lineages() if lineages is None else lineages
        self.proxy_id = proxy_id
        self.incarnation = incarnation
        self.on_abort: Callable[[Lease, str], None] = lambda _lease, _reason: None
        self.newest_attempt: Callable[[str], int] = lambda _session_id: 0
        self.is_draining = False
        self.counts: dict[str, int] = {}
        self._running: dict[str, Call] = {}
        self._seals = Seals(
            spool,
            book,
            self.lineages,
            proxy_id=proxy_id,
            drain_s=seal_drain_s,
            delivery_s=seal_delivery_s,
            cut=self._cut,
            give_up=self._give_up,
        )
        self._rejections = Rejections(spool, proxy_id=proxy_id, incarnation=incarnation)

    # --- leases

    async def open(self, lease: Lease, *, takes_over: int) -> Lease:
        """Opens a lease; returns when `SessionOpened` is durable. Raises LeaseRefusalError."""
        if self.is_draining:
            raise LeaseRefusalError(
                "this proxy is draining: open the lease at another one", status=503, is_certain=True
            )
        if (newest := self.newest_attempt(lease.session_id)) > lease.attempt:
            # Its worker was thought dead, and doesn't know it yet.
            raise LeaseRefusalError(
                f"attempt {lease.attempt} of session {lease.session_id} was given up: {newest} runs"
            )
        try:
            self.spool.check_room()
        except SpoolRefusalError as exc:
            raise LeaseRefusalError(str(exc), status=503, is_certain=True) from exc
        found = self.book.open(lease)
        if found is not lease and found.state is LeaseState.OPEN:
            return found
        if found is lease:
            lease.opened_at = now_ms()
            self.lineages.opened(lease, takes_over=takes_over)
            entry = self.spool.append(records.opened(lease, proxy_id=self.proxy_id, takes_over=takes_over))
        else:
            entry = self.spool.append(records.opened(found, proxy_id=self.proxy_id, takes_over=takes_over))
        try:
            await self.spool.durable(entry, ack_wait_s=0.0)
        except TimeoutError as exc:
            raise LeaseRefusalError(
                "the opening couldn't be made durable: neither Kafka nor the disk answered", status=503
            ) from exc
        if found.state is LeaseState.OPENING:
            found.move(LeaseState.OPEN)
            log.info("lease.opened", session_id=found.session_id, lease_id=found.lease_id, writer=found.writer)
        if found.state is not LeaseState.OPEN:
            raise LeaseRefusalError(f"writer {found.writer} of lease {found.lease_id} was sealed while it was opened")
        return found

    async def seal(self, lease: Lease, reason: str) -> int:
        """Refuses further calls, drains, appends `SessionSealed`; returns last_seq when that is durable. Idempotent."""
        self.begin_seal(lease, reason)
        await lease.sealed.wait()
        return lease.last_seq

    def begin_seal(self, lease: Lease, reason: str) -> None:
        """Starts a seal without waiting for its end; a lease that is being sealed, or is sealed, stays as it is."""
        self._seals.begin(lease, reason)

    # --- calls

    def begin(self, lease: Lease, request: ChatRequest, prompt: Prompt, body: bytes, *, arrived_s: float) -> Call:
        """Gives a call its number and appends CallStarted. Raises SpoolRefusalError, or ProxyError(lease_ended)."""
        try:
            stub = self._started(lease, request, prompt, body)
        except Exception:  # whatever it was, the call came to nothing
            prompt.release()
            raise
        self._count("started")
        call = Call(
            completion_id=stub.completion_id,
            call_seq=stub.call_seq,
            lease=lease,
            request=request,
            prompt=prompt,
            stub=stub,
            arrived_s=arrived_s,
        )
        self._running[call.completion_id] = call
        return call

    def _started(self, lease: Lease, request: ChatRequest, prompt: Prompt, body: bytes) -> CompletionRecord:
        self.spool.check_room()
        if lease.state is not LeaseState.OPEN:
            raise ProxyError("lease_ended", "this session's lease was sealed: it takes no further calls")
        seq = lease.next_call()
        stub = records.started(lease, seq, request, prompt, proxy_id=self.proxy_id, body=body, at=now_ms())
        try:
            self.spool.call_started(stub)
        except Exception:  # whatever it was: a number that nothing knows of would be a gap at the seal
            lease.undo_call(seq)
            raise
        return stub

    async def finish(self, call: Call) -> Durability:
        """Appends the record of a finished call and returns when it is durable.

        Raises TimeoutError, or ProxyError(lease_ended) when the call was given up before.
        """
        record = records.finished(call, at=now_ms(), now_s=time.monotonic())
        encoded = None
        if record.request_bytes >= LARGE_BYTES:
            # Of a first call that is all of its body: other calls' tokens go on meanwhile. The order of records is that of `_append`.
            encoded = await asyncio.to_thread(encode, _as_kept(call, record))
        entry = self._append(call, record, encoded)
        if entry is None:
            raise ProxyError("lease_ended", "this session's lease was sealed while the call ran")
        by = await self.spool.durable(entry)
        call.is_durable = True
        return by

    async def fail(self, call: Call, error: ProxyError) -> None:
        """Appends the record of a failed call; waits for its durability like a finish. Raises TimeoutError."""
        entry = self._append_failure(
            call, lambda at: records.failed(call, error, at=at, now_s=time.monotonic()), error.kind
        )
        if entry is not None:
            await self.spool.durable(entry)

    def abort(self, call: Call, reason: str) -> None:
        """Appends the record of a call that nobody waits for; nobody has to wait for its durability either."""
        self._append_failure(call, lambda at: records.aborted(call, reason, at=at, now_s=time.monotonic()), reason)

    def _cut(self, lease: Lease, reason: str) -> None:
        """By whoever runs the calls: the tap is made after this."""
        self.on_abort(lease, reason)

    def _give_up(self, lease: Lease) -> None:
        """Writes a record for each call of a lease that still has none."""
        for call in [c for c in self._running.values() if c.lease is lease]:
            log.warning("call.unrecorded_at_seal", completion_id=call.completion_id)
            self.abort(call, "sealed")

    def _append_failure(self, call: Call, make: Callable[[int], CompletionRecord], kind: str) -> Entry | None:
        at = now_ms()
        try:
            return self._append(call, make(at))
        except Exception:  # what was captured fits no record: the call gets its one record all the same, without it
            log.exception("call.unrecordable", completion_id=call.completion_id, session_id=call.session_id)
            return self._append(call, records.unrecordable(call, kind, at=at))

    def _append(self, call: Call, record: CompletionRecord, encoded: Encoded | None = None) -> Entry | None:
        # Exactly one record per call: whoever comes second (a seal that gave up waiting, then the end) finds it gone.
        if call.completion_id not in self._running:
            return None
        entry = self.spool.append(_as_kept(call, record), encoded)
        del self._running[call.completion_id]
        self._place(call, record)
        call.lease.recorded(call.call_seq)
        self._note_end(call.lease, record)
        self._count(str(record.state))
        if record.trainable:
            self._count("tokens:trainable", len(call.logprobs))
            self._count("tokens:logprob_zero", call.logprobs.count(0.0))
        if record.untrainable_reason:
            self._count(f"untrainable:{record.untrainable_reason}")
            if record.state is CompletionState.FINISHED and record.untrainable_reason != "empty":
                log.warning("call.untrainable", completion_id=call.completion_id, reason=record.untrainable_reason)
        return entry

    def _note_end(self, lease: Lease, record: CompletionRecord) -> None:
        before, error = lease.last_end, record.error
        is_aside = record.branch_hint == AUX or record.policy_id != lease.spec.policy_id
        if is_aside or (before is not None and before.call_seq > record.call_seq):
            return
        lease.last_end = CallEnd(
            call_seq=record.call_seq,
            state=str(record.state),
            kind=error.kind if error else "",
            status=error.status if error else 200,
            boundary=str(error.boundary) if error else str(Boundary.NONE),
            message=error.message if error else "",
        )

    def _place(self, call: Call, record: CompletionRecord) -> None:
        """Makes a finished call a possible parent, before its client can go on from it; any other gives its own parent free."""
        prompt = call.prompt
        if prompt.lineage is None or prompt.placed is None:
            return
        self.lineages.add(call.lease, record, prompt.placed.found.trail)
        if record.state is not CompletionState.FINISHED:
            prompt.release()

    def deliver(self, call: Call, *, is_delivered: bool, reason: str = "") -> None:
        """Appends the delivery fact of a call: once, and once more for each time that its answer is sent again."""
        if call.lease.delivered(call.call_seq):
            why = call.delivery_reason if is_delivered else reason
            self.lineages.deliver(call.lease, call.completion_id, is_delivered=is_delivered)
            self.spool.append(records.delivery(call, is_delivered=is_delivered, reason=why, at=now_ms()))

    # --- refusals

    def authorise(self, secret_hash: str) -> Lease | Denial:
        """The open lease of a secret, or why there is none."""
        return self.book.authorise(secret_hash)

    def reject(self, **facts: Any) -> None:
        """Notes a refused request."""
        self._count("rejected")
        self._rejections.add(**facts)

    def count(self, what: str) -> None:
        """Counts what leaves no record of its own; `GET /health` shows the counts."""
        self._count(what)

    def _count(self, what: str, by: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + by


def _as_kept(call: Call, record: CompletionRecord) -> CompletionRecord:
    """The record as it goes to the log: some are whole, so that no chain of deltas grows without bound."""
    return records.as_checkpoint(call, record) if is_checkpoint(call.call_seq) else record
