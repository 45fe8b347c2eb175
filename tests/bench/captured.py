"""Made-up sessions as a proxy records them, in records of a given size: what the assembler's bench reads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from schemas import ids
from schemas.arrays import pack_ids, pack_logprobs
from schemas.codec import encode
from schemas.records import (
    CompletionDelivery,
    CompletionRecord,
    CompletionState,
    Dialect,
    Record,
    SessionEvent,
    SessionEventType,
    SessionOpened,
    SessionSealed,
    SessionSpec,
    VersionSpan,
)

VOCABULARY = 150_000
_TEXT = "the counter starts at zero file test reads line import return value error fails while closed open path"
_WORDS = _TEXT.split()


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes: a first prompt of `first_tokens`, each reply and each tool result of so many tokens, records of `record_bytes`."""

    record_bytes: int
    calls: int
    first_tokens: int
    reply_tokens: int
    result_tokens: int


SHAPES = {
    20: Shape(20_000, calls=10, first_tokens=800, reply_tokens=200, result_tokens=100),
    200: Shape(200_000, calls=10, first_tokens=10_000, reply_tokens=800, result_tokens=2_000),
}
"""By kilobytes. An agent's prompt grows with every call; the text of its messages fills the records up to one size."""


def session(shape: Shape, number: int) -> Iterator[Record]:
    """All facts of one session, in the order in which they come to the log."""
    rng = np.random.default_rng(number)
    words = random.Random(number)
    session_id = ids.session_id(f"bench-{shape.record_bytes}", number)
    lease_id = ids.lease_id(session_id, 1)
    place = {"session_id": session_id, "lease_id": lease_id, "writer": 1}
    spec = SessionSpec(task_id="bench", group_id=f"group-{number}", policy_id="bench", harness="bench")
    yield SessionOpened(**place, attempt=1, proxy_id="bench", spec=spec, opened_at=1)
    prompt = rng.integers(0, VOCABULARY, shape.first_tokens, dtype=np.int32)
    for seq in range(1, shape.calls + 1):
        output = rng.integers(0, VOCABULARY, shape.reply_tokens, dtype=np.int32)
        completion_id = ids.completion_id(lease_id, 1, seq)
        record = CompletionRecord(
            **place,
            group_id=spec.group_id,
            task_id=spec.task_id,
            policy_id=spec.policy_id,
            attempt=1,
            call_seq=seq,
            completion_id=completion_id,
            proxy_id="bench",
            state=CompletionState.FINISHED,
            dialect=Dialect.OPENAI_CHAT,
            harness="bench",
            model_requested="policy",
            is_stream=True,
            suffix_ids=pack_ids(prompt),
            prompt_len=len(prompt),
            output_ids=pack_ids(output),
            logprobs=pack_logprobs(-rng.random(shape.reply_tokens, dtype=np.float32)),
            logprobs_mode="temperature",
            finish_reason="tool_calls",
            text="I look at the counter.",
            version_spans=[VersionSpan(version="bench-0", start=0, end=shape.reply_tokens)],
            engine="sglang",
            tokenizer_digest="bench",
            prompt_echo="equal",
            trainable=True,
            total_ms=1.0,
        )
        yield _filled(record, shape, words)
        yield CompletionDelivery(**place, call_seq=seq, completion_id=completion_id, delivered=True, at=1)
        result = rng.integers(0, VOCABULARY, shape.result_tokens, dtype=np.int32)
        prompt = np.concatenate([prompt, output, result])
    yield SessionSealed(**place, attempt=1, last_seq=shape.calls, reason="sealed", proxy_id="bench", sealed_at=1)
    yield SessionEvent(
        session_id=session_id, type=SessionEventType.SEALED, group_id=spec.group_id, task_id=spec.task_id,
        lease_id=lease_id, writers=[1], at=1, spec=spec, details={"calls": shape.calls},
    )  # fmt: skip


def _filled(record: CompletionRecord, shape: Shape, words: random.Random) -> CompletionRecord:
    """The record with a message so long that it has its size on the wire."""
    missing = shape.record_bytes - len(encode(record).value) - 60
    if missing <= 0:
        raise ValueError(
            f"a record of {shape.record_bytes} bytes has no room for its tokens: {-missing} bytes too many"
        )
    text = ""
    while len(text) < missing:
        text += " ".join(words.choices(_WORDS, k=50)) + "\n"
    return replace(record, messages=[{"role": "user", "content": text[:missing].replace("\n", " ")}])
