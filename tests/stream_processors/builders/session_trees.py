"""Random sessions as harnesses make them: conversations that go on, fork, are retried, compacted, re-tokenised, cut and lost.

Each call is there twice, with its whole prompt and as a delta on the call that it goes on from; both must build the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from schemas import ids
from schemas.arrays import pack_ids, unpack_ids
from schemas.records import CompletionDelivery, CompletionRecord, CompletionState
from tests.stream_processors.helpers import E, call, delivery

Fact = CompletionRecord | CompletionDelivery

SYSTEM = {"role": "system", "content": "s"}
KINDS = ("turn", "turn", "turn", "retry", "fork", "sub-agent", "compaction", "drift", "rewrite", "cut", "chance")
SPOILS = ("", "", "", "", "", "", "logprobs", "no ids", "policy", "aborted", "failed", "proxy", "versions")


@dataclass(frozen=True, slots=True)
class Spoken:
    """A call that was made: its whole prompt, its reply, and the conversation as the harness holds it afterwards."""

    record: CompletionRecord
    prompt: list[int]
    reply: list[int]
    messages: list[Any]


@dataclass(frozen=True, slots=True)
class Session:
    """The facts of one lease: `whole` has full prompts, `deltas` the same calls as deltas where they go on from one."""

    whole: list[Fact]
    deltas: list[Fact]

    def records(self) -> dict[str, CompletionRecord]:
        """The calls with whole prompts, by id."""
        return {f.completion_id: f for f in self.whole if isinstance(f, CompletionRecord)}


@st.composite
def sessions(draw: st.DrawFn, most_calls: int = 9) -> Session:
    """Sessions over few tokens, so that sequences often meet by chance, too."""
    tokens = st.lists(st.integers(1, 4), min_size=1, max_size=4)
    spoken: list[Spoken] = []
    whole: list[Fact] = []
    deltas: list[Fact] = []
    for n in range(draw(st.integers(1, most_calls))):
        writer, seq = (1, n + 1) if n < 6 else (2, n - 5)
        before = draw(st.sampled_from(spoken)) if spoken else None
        kind = draw(st.sampled_from(KINDS)) if before else "sub-agent"
        prompt, messages = _next_request(draw, kind, before, draw(tokens))
        is_cut = draw(st.integers(0, 5)) == 0
        reply = draw(tokens) + ([] if is_cut else [E])
        text = "".join(f"<{i}>" for i in reply)
        record = _spoilt(
            draw(st.sampled_from(SPOILS)),
            call(
                seq,
                prompt,
                reply,
                writer=writer,
                request_digest=ids.digest(repr(messages).encode()),
                messages=messages,
                text=text,
                finish_reason="length" if is_cut else "stop",
            ),
        )
        reply = unpack_ids(record.output_ids).tolist()
        spoken.append(Spoken(record, prompt, reply, [*messages, {"role": "assistant", "content": text}]))
        facts = [
            delivery(seq, delivered=d, writer=writer)
            for d in draw(st.sampled_from(([True], [True], [False], [], [False, True])))
        ]
        whole += [record, *facts]
        deltas += [_as_delta(record, prompt, before, messages) if before and draw(st.booleans()) else record, *facts]
    return Session(whole, deltas)


def _next_request(draw: st.DrawFn, kind: str, before: Spoken | None, new: list[int]) -> tuple[list[int], list[Any]]:
    """The prompt and the messages of the next call."""
    said = {"role": "user", "content": "".join(map(str, new))}
    if before is None or kind == "sub-agent":
        return [7, *new], [{"role": "system", "content": "sub"}, said]
    asked, told = before.prompt, before.messages
    reply = before.reply
    close = [] if reply and reply[-1] == E else [E]
    if kind == "retry":
        return asked, told[:-1]
    if kind == "compaction":
        return [8, *new], [told[0], said]
    if kind == "fork":
        return [*asked, *new], [*told[:-1], said]
    if kind == "drift":  # the same words in other tokens
        return [*asked, *[i + 10 for i in reply if i != E], E, *new], [*told, said]
    if kind == "rewrite":
        return [*asked, *reply[1:], *close, *new], [*told[:-1], {"role": "assistant", "content": "else"}, said]
    if kind == "cut":  # a stop string was trimmed off
        return [*asked, *reply[:-1], E, *new], [*told, said]
    if kind == "chance":
        return draw(st.lists(st.integers(1, 4), min_size=1, max_size=8)), [said]
    return [*asked, *reply, *close, *new], [*told, said]


def _spoilt(how: str, record: CompletionRecord) -> CompletionRecord:
    if how == "logprobs":
        return replace(record, logprobs=record.logprobs[:-4])
    if how == "no ids":
        return replace(record, output_ids=b"", logprobs=b"")
    if how == "policy":
        return replace(record, policy_id="judge")
    if how == "aborted":
        return replace(record, state=CompletionState.ABORTED)
    if how == "failed":
        return replace(record, state=CompletionState.FAILED, output_ids=b"", logprobs=b"")
    if how == "proxy":
        return replace(record, trainable=False, untrainable_reason="side")
    if how == "versions":
        return replace(record, untrainable_reason="mixed_version")
    return record


def _as_delta(record: CompletionRecord, prompt: list[int], before: Spoken, messages: list[Any]) -> CompletionRecord:
    """The record as the proxy spells it: what it has in common with the call that it goes on from is left out."""
    common = _common(prompt, [*before.prompt, *before.reply])
    said = [*before.messages[:-1], {"role": "assistant", "content": before.record.text}]
    same = _common(messages, said)
    return replace(
        record,
        parent_id=before.record.completion_id,
        prefix_len=common,
        prefix_digest=ids.digest(pack_ids(prompt[:common])) if common else "",
        suffix_ids=pack_ids(prompt[common:]),
        messages=messages[same:],
        messages_prefix=same,
    )


def _common(one: list[Any], other: list[Any]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
