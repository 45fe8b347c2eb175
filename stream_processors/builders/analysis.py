"""What both builders need to know of a lease: its calls, where they stand, their tree and the verdict on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schemas.records import CallDisposition, CallState, Trace
from stream_processors.builders.base import Built, Call, count
from stream_processors.builders.lease import Lease
from stream_processors.builders.tree import CallTree, grow_tree
from stream_processors.builders.trie import Place
from stream_processors.builders.verdicts import can_be_parent, is_foreign, judge

__all__ = ["Analysis", "analyse"]


@dataclass(frozen=True, slots=True)
class Analysis:
    """The calls of one lease by position: where prompts end, the tree, and why a call isn't trained ('': it is)."""

    calls: list[Call]
    prompts: list[Place | None]
    tree: CallTree
    reasons: list[str]

    def place(self, i: int) -> Place:
        """Where the prompt of a call that stands in the tree ends."""
        place = self.prompts[i]
        if place is None:
            raise AssertionError(f"call {i} has no resolved prompt and can't stand in a trace")
        return place

    def finish(self, traces: list[Trace], first_trace: Mapping[int, int]) -> Built:
        """Settle the state of every call, given the first trace in which each stands, and add up."""
        states = [self._state(call, first_trace.get(call.position, -1)) for call in self.calls]
        lengths = [place.depth if place is not None else 0 for place in self.prompts]
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


def analyse(lease: Lease, policy_id: str) -> Analysis:
    """Order, connect and judge the calls of one lease; calls of other policies stay out of the tree."""
    calls, places = lease.calls(), lease.places()
    own = [(None, None) if is_foreign(c, policy_id) else p for c, p in zip(calls, places, strict=True)]
    tree = grow_tree(calls, own, [can_be_parent(c, p) for c, (p, _) in zip(calls, own, strict=True)])
    prompts = [prompt for prompt, _ in places]
    return Analysis(calls, prompts, tree, judge(calls, prompts, tree, policy_id))
