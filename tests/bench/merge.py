"""How fast calls become traces: the assembler's core call by call, beside the published rule and the plain exact-prefix rule.

Tokens per second are those of the finished row, for all three. Ours gets the records that the log holds (deltas, decoded), the others
whole prompts as lists of numbers. Where decoding each prompt for itself would take gigabytes, the lists share their numbers, which
makes comparing as cheap for them as it can be. Also what a session's records weigh.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import cramjam
import numpy as np

from bus.settings import CLAIM_CHECK_BYTES
from schemas import ids
from schemas.arrays import pack_ids, pack_logprobs, unpack_ids, unpack_mask
from schemas.codec import encode
from schemas.records import CompletionDelivery, CompletionRecord, CompletionState, LineageStatus, Trace, VersionSpan
from stream_processors.builders import Lease, settle
from tests.bench.context import Bench
from tests.bench.errors import BenchError
from tests.bench.merge_rules import PlainCall, Row, exact_prefix, published
from tests.bench.report import Metric, compared, plain

END = 151_645
FIRST_TOKENS = 3_000
LEASE = ids.lease_id("bench-merge", 1)
REPEATS = 200
WITHIN_S = 3.0
"""For the repeats of one rule: a slow one is run once or twice."""
SHARED_ABOVE = 10_000_000
"""Twice that many numbers, at 36 bytes each, are whole prompts of their own."""
TURNS_WEIGHED = 51


@dataclass(frozen=True, slots=True)
class Session:
    """One conversation: its records as deltas, the same calls with whole prompts, and how long its one row is."""

    facts: list[CompletionRecord | CompletionDelivery]
    whole: list[PlainCall]
    tokens: int


def make_session(turns: int, new_tokens: int, *, is_shared: bool = False, seed: int = 0) -> Session:
    """A conversation of `turns` calls; a quarter of each turn's new tokens is sampled, the rest is a tool's result.

    `is_shared`: the whole prompts share their numbers instead of holding them each for itself, as decoded requests do.
    """
    rng = np.random.default_rng(seed)
    reply, result = new_tokens // 4, new_tokens - new_tokens // 4
    stream: list[int] = rng.integers(0, 150_000, FIRST_TOKENS + turns * new_tokens).tolist()
    facts: list[CompletionRecord | CompletionDelivery] = []
    whole: list[PlainCall] = []
    at = FIRST_TOKENS
    before = 0
    for seq in range(1, turns + 1):
        stream[at + reply - 1] = END
        prompt, output = stream[:at], stream[at : at + reply]
        logprobs = (-rng.random(reply)).astype(np.float32)
        own = prompt if is_shared else unpack_ids(pack_ids(prompt)).tolist()
        whole.append(PlainCall(own, output, logprobs.tolist()))
        facts.append(_record(seq, prompt, before, output, pack_logprobs(logprobs)))
        facts.append(_delivery(seq))
        before = at + reply
        at += reply + result
    return Session(facts, whole, before)


def _record(seq: int, prompt: list[int], before: int, output: list[int], logprobs: bytes) -> CompletionRecord:
    return CompletionRecord(
        session_id="bench-merge",
        policy_id="bench",
        lease_id=LEASE,
        call_seq=seq,
        completion_id=ids.completion_id(LEASE, 1, seq),
        state=CompletionState.FINISHED,
        lineage=LineageStatus.RESOLVED if before else LineageStatus.ROOT,
        parent_id=ids.completion_id(LEASE, 1, seq - 1) if before else "",
        prefix_len=before,
        prefix_digest=ids.digest(pack_ids(prompt[:before])) if before else "",
        suffix_ids=pack_ids(prompt[before:]),
        prompt_len=len(prompt),
        output_ids=pack_ids(output),
        logprobs=logprobs,
        logprobs_mode="temperature",
        finish_reason="tool_calls",
        version_spans=[VersionSpan(version="0", start=0, end=len(output))],
        tokenizer_digest="bench",
        trainable=True,
    )


def _delivery(seq: int) -> CompletionDelivery:
    completion_id = ids.completion_id(LEASE, 1, seq)
    return CompletionDelivery(
        session_id="bench-merge", lease_id=LEASE, call_seq=seq, completion_id=completion_id, delivered=True
    )


def ours(session: Session) -> list[Trace]:
    """The assembler's core: each record when it comes, then the close."""
    lease = Lease()
    for fact in session.facts:
        lease.add(fact)
    return settle("prefix_merging", {}, lease, "bench").traces


async def measure(bench: Bench) -> list[Metric]:
    """Both sizes, then the bytes."""
    metrics: list[Metric] = []
    for turns, new_tokens in ((50, 600), (200, 2_000)):
        shape = (bench.size(turns, 10), bench.size(new_tokens, 60))
        metrics += await asyncio.to_thread(_speeds, bench, f"merge_{turns}x{new_tokens}", *shape)
    return metrics + await asyncio.to_thread(_bytes, bench)


def _speeds(bench: Bench, name: str, turns: int, new_tokens: int) -> list[Metric]:
    session = make_session(turns, new_tokens, is_shared=turns * turns * new_tokens > SHARED_ABOVE)
    _require_equal(ours(session), published(session.whole), exact_prefix(session.whole))
    mine = _rate(lambda: ours(session), session.tokens)
    theirs = _rate(lambda: published(session.whole), session.tokens)
    simple = _rate(lambda: exact_prefix(session.whole), session.tokens)
    bench.say(f"{name}: {mine:,.0f} tokens/s; published rule {theirs:,.0f}, plain prefix {simple:,.0f}")
    return [
        compared(f"{name}_tokens_per_s", mine, "1/s", theirs),
        compared(f"{name}_tokens_per_s_beside_exact_prefix", mine, "1/s", simple),
    ]


def _rate(work: Callable[[], Any], tokens: int) -> float:
    """Tokens per second of the best of some runs, without the collector's pauses."""
    best = float("inf")
    until = time.perf_counter() + WITHIN_S
    for n in range(REPEATS):
        if n and time.perf_counter() > until:
            break
        gc.collect()
        gc.disable()
        try:
            began = time.perf_counter()
            work()
            best = min(best, time.perf_counter() - began)
        finally:
            gc.enable()
    return tokens / best


def _require_equal(traces: list[Trace], *others: list[Row]) -> None:
    """All three must make the same one row of a conversation that was only appended to."""
    (trace,) = traces
    for rows in others:
        (row,) = rows
        same = (
            unpack_ids(trace.prompt_ids).tolist() == row.prompt
            and unpack_ids(trace.response_ids).tolist() == row.response
        )
        if not same or unpack_mask(trace.loss_mask).tolist() != row.mask:
            raise BenchError("the three rules don't agree on an append-only conversation")


def _bytes(bench: Bench) -> list[Metric]:
    """The records of a session, ids and messages, bus and blobs together; calls take seconds, so each is its own batch."""
    turns = bench.size(TURNS_WEIGHED, 10)
    session = make_session(turns, 600)
    records = [f for f in session.facts if isinstance(f, CompletionRecord)]
    delta = full = 0
    said: list[dict[str, str]] = []
    tools = [{"name": f"tool-{n}", "description": _text(FIRST_TOKENS // 20)} for n in range(10)]
    for record, call in zip(records, session.whole, strict=True):
        # Half of the first prompt are the tools; a delta names them by their digest.
        new_tokens = len(record.suffix_ids) // 4 if said else FIRST_TOKENS // 2
        new = [{"role": "tool" if said else "user", "content": _text(new_tokens)}]
        reply = _text(len(call.response))
        told = replace(record, text=reply, tools=[] if said else tools, tools_digest=ids.digest(b"tools"))
        delta += _sent(replace(told, messages=new, messages_prefix=len(said)))
        whole = replace(told, prefix_len=0, prefix_digest="", suffix_ids=pack_ids(call.prompt))
        full += _sent(replace(whole, messages=[*said, *new], tools=tools))
        said += [*new, {"role": "assistant", "content": reply}]
    ids_full = sum(len(c.prompt) for c in session.whole)
    ids_delta = sum(len(r.suffix_ids) for r in records) // 4
    bench.say(f"{turns} turns: {ids_delta:,} prompt ids as deltas, {ids_full:,} as whole prompts")
    return [
        compared("session_bytes_51_turns", delta, "B", full),
        compared("session_prompt_ids_51_turns", ids_delta, "ids", ids_full),
        plain("session_bytes_51_turns_per_call", delta / turns, "B"),
    ]


_random = random.Random(0)
_WORDS = ["".join(_random.choices("etaoinshrdlucmfw_.(", k=_random.randint(2, 9))) for _ in range(3_000)]


def _text(tokens: int) -> str:
    """Text of about so many tokens: 4 characters each, of a few thousand words, so that it compresses as text does."""
    return " ".join(_random.choices(_WORDS, k=max(1, tokens * 2 // 3)))


def _sent(record: CompletionRecord) -> int:
    """What a record weighs on its way: compressed on the bus, or as it is in the blob store, where large ones go."""
    value = encode(record).value
    return len(value) if len(value) > CLAIM_CHECK_BYTES else len(bytes(cramjam.zstd.compress(value)))
