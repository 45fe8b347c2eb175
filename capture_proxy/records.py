"""From a call to its records: pure functions, so that what stands on the log can be tested without a socket."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from capture_proxy import logprobs, outcome
from capture_proxy.call import Call, Prompt
from capture_proxy.captured import captured
from capture_proxy.dialects import DIALECTS
from capture_proxy.engines.errors import EngineBusyError
from capture_proxy.leases import Lease
from capture_proxy.reply import ChatRequest, ProxyError
from capture_proxy.token_ids import packed_ids
from schemas import ids
from schemas.records import (
    Boundary,
    CallError,
    CompletionDelivery,
    CompletionRecord,
    CompletionState,
    Dialect,
    LineageStatus,
    Rejection,
    SessionOpened,
    SessionSealed,
)

BUSY: Final = "busy"
"""Of a call that an engine refused for the moment: its weights were changing, or its queue was full."""
NOT_PLACED: Final = "not_placed"
"""Of a call that ended before its prompt was made."""


def opened(lease: Lease, *, proxy_id: str, takes_over: int) -> SessionOpened:
    """The fact that opens a lease's writer."""
    return SessionOpened(
        session_id=lease.session_id,
        lease_id=lease.lease_id,
        attempt=lease.attempt,
        writer=lease.writer,
        takes_over=takes_over,
        secret_hash=lease.secret_hash,
        proxy_id=proxy_id,
        spec=lease.spec,
        opened_at=lease.opened_at,
    )


def sealed(lease: Lease, *, proxy_id: str, at: int) -> SessionSealed:
    """The fact that ends a lease's writer."""
    return SessionSealed(
        session_id=lease.session_id,
        lease_id=lease.lease_id,
        attempt=lease.attempt,
        writer=lease.writer,
        last_seq=lease.last_seq,
        reason=lease.seal_reason,
        proxy_id=proxy_id,
        sealed_at=at,
    )


def started(
    lease: Lease, call_seq: int, request: ChatRequest, prompt: Prompt, *, proxy_id: str, body: bytes, at: int
) -> CompletionRecord:
    """CallStarted: the record as far as it is known before the engine has the call. It stays small: prompt and messages come later."""
    return CompletionRecord(
        session_id=lease.session_id,
        group_id=lease.spec.group_id,
        task_id=lease.spec.task_id,
        policy_id=prompt.policy_id or lease.spec.policy_id,
        attempt=lease.attempt,
        lease_id=lease.lease_id,
        writer=lease.writer,
        call_seq=call_seq,
        completion_id=ids.completion_id(lease.lease_id, lease.writer, call_seq),
        proxy_id=proxy_id,
        dialect=Dialect(request.dialect),
        harness=lease.spec.harness,
        model_requested=request.model,
        request_digest=ids.digest(body),
        is_stream=request.stream,
        started_at=at,
        lineage=LineageStatus.NONE,
        lineage_reason=NOT_PLACED,
        prompt_len=len(prompt.ids),
        tokenizer_digest=prompt.renderer.tokenizer_digest,
        template_digest=prompt.renderer.template_digest,
        request_bytes=len(body),
    )


def as_checkpoint(call: Call, record: CompletionRecord) -> CompletionRecord:
    """The record without deltas: from it on, a reader needs nothing that came before. Its parent is still named."""
    placed = call.prompt.placed
    if placed is None:
        return record
    return replace(
        record,
        is_checkpoint=True,
        prefix_len=0,
        prefix_digest="",
        suffix_ids=packed_ids(call.prompt.ids),
        messages_prefix=0,
        messages=placed.whole_messages(),
        tools=call.request.tools,
    )


def finished(call: Call, *, at: int, now_s: float) -> CompletionRecord:
    """The record of a call that the engine finished."""
    record = captured(call, at=at, now_s=now_s)
    reason = logprobs.why_untrainable(
        call.output_ids,
        call.logprobs,
        record.prompt_echo,
        vocab_size=call.prompt.renderer.vocab_size,
        fault=call.finish.fault if call.finish is not None else "",
        has_prompt=bool(call.prompt.ids),
        has_reply=bool(record.text or record.reasoning or record.tool_calls),
    )
    return replace(
        record,
        state=CompletionState.FINISHED,
        finish_reason=outcome.finish_reason(call),
        trainable=not reason,
        untrainable_reason=reason,
    )


def failed(call: Call, error: ProxyError, *, at: int, now_s: float) -> CompletionRecord:
    """The record of a call that ended with an error."""
    is_busy = isinstance(error, EngineBusyError)
    is_aborted = call.finish is not None and call.finish.reason == "abort"
    seen = 200 if call.is_stream_begun else DIALECTS[call.request.dialect].encode_error(error)[0]
    return replace(
        captured(call, at=at, now_s=now_s),
        state=CompletionState.ABORTED if is_aborted else CompletionState.FAILED,
        finish_reason="abort" if is_aborted else "",
        untrainable_reason="aborted" if is_aborted else BUSY if is_busy else "failed",
        error=CallError(
            kind=BUSY if is_busy else error.kind, status=seen, boundary=Boundary.PROVIDER, message=error.message
        ),
    )


def aborted(call: Call, reason: str, *, at: int, now_s: float) -> CompletionRecord:
    """The record of a call that nobody waits for any more: the client left, or the lease was sealed."""
    return replace(
        captured(call, at=at, now_s=now_s),
        state=CompletionState.ABORTED,
        finish_reason="abort",
        untrainable_reason="aborted",
        error=CallError(
            kind=reason, boundary=Boundary.NONE, message="the call was given up before the engine finished"
        ),
    )


def unrecordable(call: Call, kind: str, *, at: int) -> CompletionRecord:
    """The record of a call whose captured values fit no record: what was known at its start, and the reason."""
    return replace(
        call.stub,
        state=CompletionState.FAILED,
        finished_at=at,
        untrainable_reason="unrecordable",
        error=CallError(kind=kind, boundary=Boundary.PROVIDER, message="what was captured fits no record"),
    )


def delivery(call: Call, *, is_delivered: bool, reason: str, at: int) -> CompletionDelivery:
    """The fact whether a call's terminal event was handed to the transport."""
    return CompletionDelivery(
        session_id=call.lease.session_id,
        lease_id=call.lease.lease_id,
        writer=call.lease.writer,
        call_seq=call.call_seq,
        completion_id=call.completion_id,
        delivered=is_delivered,
        reason=reason,
        at=at,
    )


def rejection(
    *,
    reason: str,
    status: int,
    dialect: str,
    secret: str | None,
    session_id: str,
    method: str,
    path: str,
    host: str,
    proxy_id: str,
    incarnation: str,
    number: int,
    at: int,
    request_bytes: int = 0,
    details: dict[str, Any] | None = None,
) -> Rejection:
    """The fact that a request was refused before it became a call. Of the secret only the hash is kept; `path` must be without it."""
    known = {d.value for d in Dialect}
    return Rejection(
        rejection_id=ids.derive("rejection", proxy_id, incarnation, number),
        reason=reason,
        status=status,
        dialect=Dialect(dialect) if dialect in known else Dialect.UNKNOWN,
        secret_hash=ids.secret_hash(secret) if secret else "",
        session_id=session_id,
        method=method,
        path=path,
        host=host,
        proxy_id=proxy_id,
        request_bytes=request_bytes,
        details=details or {},
        at=at,
    )
