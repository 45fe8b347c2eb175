"""What every builder works on: the calls of one lease in canonical order, and what a builder gives back.

A builder is a pure function of a *set* of records: repetition and arrival order change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from schemas.records import CallState, CompletionDelivery, CompletionRecord, Counts, SessionOpened, SessionSealed, Trace
from stream_processors.builders.trie import ID_BYTES

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


SPLIT: Final = "split"
SPLICE: Final = "splice"


@dataclass(frozen=True, slots=True)
class Options:
    """What a session may ask of a builder.

    `drift` says what becomes of a reply that came back in other tokens: `split` begins a new trace, always on-context;
    `splice` is the published rule, whose later turns stand behind tokens that they weren't sampled after.
    `end_of_turn_id` is for `splice` only; None: the last token of a reply that ended by itself.
    """

    drift: str = SPLIT
    end_of_turn_id: int | None = None

    @classmethod
    def parse(cls, builder: str, options: Mapping[str, Any]) -> Options:
        """The options of a session; an option that were silently ignored would build something else than was asked for.

        Raises UnknownBuilderError for one that this builder doesn't have.
        """
        drifts = (SPLIT, SPLICE) if builder == "prefix_merging" else (SPLIT,)
        unknown = {k: v for k, v in options.items() if k not in ("drift", "end_of_turn_id")}
        drift, end = options.get("drift", SPLIT), options.get("end_of_turn_id")
        if drift not in drifts:
            unknown["drift"] = drift
        if end is not None and (type(end) is not int or drift != SPLICE):
            unknown["end_of_turn_id"] = end
        if unknown:
            known = " or ".join(f"drift={d!r}" for d in drifts)
            raise UnknownBuilderError(
                f"builder {builder} has no option {unknown!r}: use {known}, and with 'splice' end_of_turn_id=<token id>"
            )
        return cls(drift, end)


def count(calls: list[Call], states: list[CallState], traces: list[Trace], prompt_bytes: Sequence[int]) -> Counts:
    """The sums of a lease: prompt tokens as the engine read them, sampled tokens of all calls, trainable tokens of the traces.

    `prompt_bytes` holds the length of each call's packed prompt, 0 where it isn't known.
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
        prompt_tokens=sum(prompt_bytes) // ID_BYTES,
        sampled_tokens=sum(len(c.record.output_ids) for c in calls) // ID_BYTES,
        trainable_tokens=sum(t.loss_mask.count(1) for t in traces),
    )
