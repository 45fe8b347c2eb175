"""Two other ways to merge calls, as one would write them down: what the assembler's core is measured against."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class PlainCall:
    """One call with its whole prompt, as a store of requests holds it."""

    prompt: list[int]
    response: list[int]
    logprobs: list[float]
    finish_reason: str = "stop"


@dataclass(slots=True)
class Row:
    """What both rules give: one token sequence with its mask; log-probabilities are 0.0 where it is 0."""

    prompt: list[int]
    response: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def add(self, tokens: list[int], logprobs: list[float] | None) -> None:
        """Append sampled tokens, or (without log-probabilities) others."""
        self.response += tokens
        self.mask += [0 if logprobs is None else 1] * len(tokens)
        self.logprobs += [0.0] * len(tokens) if logprobs is None else logprobs


def published(calls: Iterable[PlainCall]) -> list[Row]:
    """The published rule: chains by the latest prompt's prefix, cut at the first end-of-turn token of the server's tail.

    A call joins the chain with the longest stored prompt that its own begins with; each chain becomes one row, in which the
    server's rendering of a reply is replaced by what was sampled. A tail without end of turn ends the chain.
    """
    chains: list[list[PlainCall]] = []
    for call in calls:
        best = -1
        for n, chain in enumerate(chains):
            tip = chain[-1].prompt
            longer = best < 0 or len(tip) > len(chains[best][-1].prompt)
            if tip and longer and call.prompt[: len(tip)] == tip:
                best = n
        if best < 0:
            chains.append([call])
        else:
            chains[best].append(call)
    return [_published_row(chain) for chain in chains]


def _published_row(chain: list[PlainCall]) -> Row:
    natural = ("stop", "tool_calls", "stop_sequence")
    end = next((c.response[-1] for c in chain if c.finish_reason in natural and c.response), None)
    row = Row(chain[0].prompt)
    row.add(chain[0].response, chain[0].logprobs)
    for before, call in itertools.pairwise(chain):
        if call.prompt[: len(before.prompt)] != before.prompt:
            break
        tail = call.prompt[len(before.prompt) :]
        if end is None or end not in tail:
            break
        at = tail.index(end)
        closed = before.response[-1] == end
        row.add(tail[at + 1 :] if closed else tail[at:], None)
        row.add(call.response, call.logprobs)
    return row


def exact_prefix(calls: Iterable[PlainCall]) -> list[Row]:
    """The plain rule: a call extends the row whose prompt and response are the longest prefix of its prompt."""
    rows: list[Row] = []
    for call in calls:
        best: Row | None = None
        for row in rows:
            so_far = row.prompt + row.response
            longer = best is None or len(so_far) > len(best.prompt) + len(best.response)
            if longer and call.prompt[: len(so_far)] == so_far:
                best = row
        if best is None:
            best = Row(call.prompt)
            rows.append(best)
        else:
            best.add(call.prompt[len(best.prompt) + len(best.response) :], None)
        best.add(call.response, call.logprobs)
    return rows
