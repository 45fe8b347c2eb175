"""What both builders need to know of a lease: its calls, their prompts, their tree and the verdict on each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from schemas.records import CallDisposition, CallState, Trace
from stream_processors.builders.base import Built, Call, CompletionFact, canonical_calls, count
from stream_processors.builders.prompts import resolve_prompts
from stream_processors.builders.tree import CallTree, grow_tree
from stream_processors.builders.verdicts import can_be_parent, content_problem, judge

__all__ = ["Analysis", "analyse"]


@dataclass(frozen=True, slots=True)
class Analysis:
    """The calls of one lease by position: prompt (packed ids, None when unresolved), tree, reason ('' = to train)."""

    calls: list[Call]
    prompts: list[bytes | None]
    tree: CallTree
    reasons: list[str]

    def prompt(self, position: int) -> bytes:
        """The packed prompt of a call that stands in the tree."""
        prompt = self.prompts[position]
        if prompt is None:
            raise AssertionError(f"call {position} has no resolved prompt and can't stand in a trace")
        return prompt

    def finish(self, traces: list[Trace], first_trace: Mapping[int, int]) -> Built:
        """Settle the state of every call, given the first trace in which each stands, and add up."""
        states = [self._state(call, first_trace.get(call.position, -1)) for call in self.calls]
        lengths = {i: len(prompt) for i, prompt in enumerate(self.prompts) if prompt}
        trained = [c.record for c in self.calls if not self.reasons[c.position]]
        modes = sorted({r.logprobs_mode for r in trained if r.logprobs_mode})
        return Built(
            traces=traces,
            calls=states,
            counts=count(self.calls, states, traces, lengths),
            tokenizer_digest=next((r.tokenizer_digest for r in trained if r.tokenizer_digest), ""),
            logprobs_mode=modes[0] if len(modes) == 1 else "mixed" if modes else "",
        )

    def _state(self, call: Call, trace: int) -> CallState:
        reason = self.reasons[call.position]
        if reason:
            disposition, trace = CallDisposition.UNTRAINABLE, -1
        else:
            disposition = CallDisposition.TRAINED if trace >= 0 else CallDisposition.CONTEXT
        return CallState(
            completion_id=call.record.completion_id,
            lease_id=call.record.lease_id,
            writer=call.record.writer,
            call_seq=call.record.call_seq,
            disposition=disposition,
            reason=reason,
            trace=trace,
            is_delivered=call.is_delivered,
        )


def analyse(facts: Iterable[CompletionFact], policy_id: str) -> Analysis:
    """Order, resolve, connect and judge the calls of one lease; calls of other policies stay out of the tree."""
    calls = canonical_calls(facts)
    prompts = resolve_prompts(calls)
    own = [
        None if content_problem(c, p, policy_id) == "other_policy" else p for c, p in zip(calls, prompts, strict=True)
    ]
    tree = grow_tree(calls, own, [can_be_parent(c, p, policy_id) for c, p in zip(calls, own, strict=True)])
    return Analysis(calls, prompts, tree, judge(calls, prompts, tree, policy_id))
