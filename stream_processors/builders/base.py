"""What every builder works on: the calls of one lease in canonical order, and what a builder gives back.

A builder is a pure function of a *set* of records: repetition and arrival order change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from schemas import codec, ids
from schemas.records import CallState, CompletionDelivery, CompletionRecord, Counts, SessionOpened, SessionSealed, Trace

ID_BYTES: Final = 4
"""Token ids are little-endian int32: prompts are compared as bytes, and 4 bytes are one token."""

CompletionFact = CompletionRecord | CompletionDelivery | SessionOpened | SessionSealed


@dataclass(frozen=True, slots=True)
class Call:
    """One captured call: its place in the canonical order (writer, call_seq), and whether its reply reached the harness.

    `is_delivered` is None when no delivery fact came. `is_conflicted`: two different records claim this call's number.
    """

    record: CompletionRecord
    position: int
    is_delivered: bool | None
    is_conflicted: bool = False


@dataclass(frozen=True, slots=True)
class Built:
    """What a builder makes of one lease: traces, the one state of every call, and their sums."""

    traces: list[Trace]
    calls: list[CallState]
    counts: Counts
    tokenizer_digest: str = ""
    logprobs_mode: str = ""


class UnknownBuilderError(ValueError):
    """A session asks for a builder, or for an option of one, that this version doesn't have."""


def canonical_calls(facts: Iterable[CompletionFact]) -> list[Call]:
    """The calls among the facts of *one lease*, in the order (writer, call_seq), with their delivery facts merged by OR.

    Of two different records under one number the one with the lower digest is kept, so that the choice doesn't
    depend on arrival, and the call is marked as conflicted.
    """
    records: dict[tuple[int, int], CompletionRecord] = {}
    delivered: dict[tuple[int, int], bool] = {}
    conflicted: set[tuple[int, int]] = set()
    for fact in facts:
        if isinstance(fact, CompletionDelivery):
            number = (fact.writer, fact.call_seq)
            delivered[number] = delivered.get(number, False) or fact.delivered
        elif isinstance(fact, CompletionRecord):
            number = (fact.writer, fact.call_seq)
            known = records.setdefault(number, fact)
            if known is not fact and known != fact:
                conflicted.add(number)
                records[number] = min(known, fact, key=_digest)
    return [
        Call(records[number], position, delivered.get(number), number in conflicted)
        for position, number in enumerate(sorted(records))
    ]


def _digest(record: CompletionRecord) -> str:
    return ids.digest(codec.encode(record).value)


def count(calls: list[Call], states: list[CallState], traces: list[Trace], prompt_bytes: Mapping[int, int]) -> Counts:
    """The sums of a lease: prompt tokens as the engine read them, sampled tokens of all calls, trainable tokens of the traces.

    `prompt_bytes` maps a call's position to the length of its packed prompt.
    """
    untrainable: dict[str, int] = {}
    for state in states:
        if state.reason:
            untrainable[state.reason] = untrainable.get(state.reason, 0) + 1
    return Counts(
        calls=len(states),
        trained=sum(s.disposition == "trained" for s in states),
        context=sum(s.disposition == "context" for s in states),
        untrainable=dict(sorted(untrainable.items())),
        traces=len(traces),
        prompt_tokens=sum(prompt_bytes.values()) // ID_BYTES,
        sampled_tokens=sum(len(c.record.output_ids) for c in calls) // ID_BYTES,
        trainable_tokens=sum(t.loss_mask.count(1) for t in traces),
    )
