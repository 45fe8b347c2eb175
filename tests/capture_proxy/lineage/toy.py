"""A model whose tokens are whole words, small enough to write down: role headers 1 system, 2 user, 3 assistant, 4 tool; 99 ends a message.

A prompt is each message as `role body 99`, then `3`. A body's words are numbers. 71 … 79 are thinking, which the template prints only
behind the last user message; 60 … 69 call a tool (61 is `61()`). With `glue` the template prints 98 behind each message's end.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from capture_proxy import records
from capture_proxy.call import Call, Prompt
from capture_proxy.engines.base import EngineFinish
from capture_proxy.leases import Lease
from capture_proxy.lineage.continuing import made_whole
from capture_proxy.lineage.index import Lineage
from capture_proxy.lineage.nodes import head_of
from capture_proxy.lineage.placing import is_checkpoint, place
from capture_proxy.rendering.base import ParsedCall, ParsedReply, Renderer
from capture_proxy.reply import ChatRequest, ProxyError, tool_call_id
from schemas import arrays, ids
from schemas.records import CompletionRecord, SessionSpec

END, GLUE = 99, 98
ROLES = {"system": 1, "user": 2, "assistant": 3, "tool": 4}


@dataclass
class ToyRenderer:
    """A `Renderer` of the toy model."""

    glue: bool = False
    is_wrapping_results: bool = False
    """Consecutive tool results stand in one user block."""
    name: str = "toy"
    tokenizer_digest: str = "t"
    template_digest: str = "p"
    stop_token_ids: tuple[int, ...] = (END,)
    end_of_turn_id: int | None = END
    vocab_size: int = 0

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], _options: Mapping[str, Any]
    ) -> list[int]:
        head = [7, len(tools)] if tools else []
        return [*head, *self._body(messages), 3]

    def extend(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
        *,
        new_from: int,
        tools: Sequence[Mapping[str, Any]],
        template_kwargs: Mapping[str, Any],
    ) -> list[int] | None:
        whole = self._body(messages)
        new = self._body(messages[new_from:], last_user=_last_user(messages) - new_from)
        assert whole[len(whole) - len(new) :] == new
        closing = [] if list(output_ids[-1:]) == [END] else [END]
        return [*prompt_ids, *output_ids, *closing, *([GLUE] if self.glue else []), *new, 3]

    def _body(self, messages: Sequence[Mapping[str, Any]], last_user: int | None = None) -> list[int]:
        last_user = _last_user(messages) if last_user is None else last_user
        out: list[int] = []
        for at, message in enumerate(messages):
            words = numbers(message.get("content") or "")
            if message["role"] == "assistant":
                thought = numbers(message.get("reasoning_content") or "") if at > last_user else []
                made = [int(call["function"]["name"]) for call in message.get("tool_calls") or ()]
                words = [*thought, *words, *made]
            follows = at > 0 and messages[at - 1]["role"] == "tool"
            if self.is_wrapping_results and message["role"] == "tool":
                if follows:
                    del out[-2 if self.glue else -1 :]
                else:
                    out.append(2)
            else:
                out.append(ROLES[message["role"]])
            out += [*words, END, *([GLUE] if self.glue else [])]
        return out

    def parse(self, output: Sequence[int], stop: str = "") -> ParsedReply:
        words = [i for i in output if i != END]
        if stop and str(words[-1]) == stop:
            words.pop()
        return ParsedReply(
            text=" ".join(str(i) for i in words if not 60 <= i < 80),
            reasoning=" ".join(str(i) for i in words if 70 <= i < 80),
            tool_calls=tuple(ParsedCall(str(i), "{}", (at, at + 1)) for at, i in enumerate(words) if 60 <= i < 70),
            status="ok",
        )

    def decode(self, token_ids: Sequence[int]) -> str:
        """Thinking as it would be marked."""
        words = [str(i) for i in token_ids]
        thought = [at for at, i in enumerate(token_ids) if 70 <= i < 80]
        if thought and thought[-1] + 1 < len(token_ids):
            words[thought[-1]] += " </think>"
        return " ".join(words)

    def encode(self, text: str) -> list[int]:
        return numbers(text)

    def parser(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError

    def token_bytes(self, token_id: int) -> bytes:
        return str(token_id).encode()


def numbers(content: Any) -> list[int]:
    """The words of a content."""
    if not isinstance(content, str):
        return [w for part in content for w in (numbers(part["text"]) if part["type"] == "text" else [88])]
    return [int(w) for w in content.split()]


def _last_user(messages: Sequence[Mapping[str, Any]]) -> int:
    return max((at for at, m in enumerate(messages) if m["role"] == "user"), default=-1)


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: Any = "", **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def tool(text: str, call_id: str = "x") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def tool_calls(*made: tuple[str, str, str]) -> list[dict[str, Any]]:
    """(id, name, arguments) of each."""
    return [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in made
    ]


S, U, V, R, Q = "10 11", "20 21", "22", "41", "42"
OPENING = [system(S), user(U)]
P1 = [1, 10, 11, 99, 2, 20, 21, 99, 3]


@dataclass(kw_only=True)
class Asked:
    """One call of a world: its record as logged, the prompt that the engine got, the answer as a client sends it back."""

    record: CompletionRecord
    prompt: list[int]
    answer: dict[str, Any]
    call: Call
    messages: list[dict[str, Any]]

    @property
    def id(self) -> str:
        return self.record.completion_id

    @property
    def parent_id(self) -> str:
        return self.record.parent_id

    @property
    def told(self) -> tuple[str, str]:
        return str(self.record.lineage), self.record.lineage_reason


@dataclass(kw_only=True)
class World:
    """One lease, without sockets: requests are placed, sampled by the test, recorded and added, by the proxy's own functions."""

    renderer: Renderer = field(default_factory=ToyRenderer)  # type: ignore[arg-type]
    history: str = "sampled"
    lease_id: str = "lease-1"
    writer: int = 1
    lineage: Lineage = field(default_factory=lambda: Lineage("p"))
    log: list[CompletionRecord] = field(default_factory=list)
    seq: int = 0

    def begin(self, messages: list[dict[str, Any]], **request: Any) -> Call:
        """A call that is running."""
        asked = made_whole(ChatRequest(dialect="openai_chat", model="m", messages=messages, **request), self.lineage)
        head = head_of(self.lineage.digest_tools(asked.tools), asked.template_kwargs)
        found = self.lineage.find(asked.messages, head, asked.turn_ids)
        prompt_ids, placed = place(found, asked, self.renderer, history=self.history)
        if placed.parent is None:
            self.lineage.release(found.parent_id)
        prompt = Prompt(
            renderer=self.renderer, ids=prompt_ids, sampling={}, request=asked, placed=placed, lineage=self.lineage
        )
        self.seq += 1
        lease = Lease(
            session_id="s",
            lease_id=self.lease_id,
            attempt=1,
            writer=self.writer,
            secret_hash="h",
            spec=SessionSpec(policy_id="p"),
        )
        body = json.dumps([messages, request], default=str).encode()
        stub = records.started(lease, self.seq, asked, prompt, proxy_id="x", body=body, at=1000)
        return Call(
            completion_id=stub.completion_id,
            call_seq=self.seq,
            lease=lease,
            request=asked,
            prompt=prompt,
            stub=stub,
            accepted_s=1.0,
        )

    def end(
        self,
        call: Call,
        output: list[int],
        *,
        parsed: ParsedReply | None = None,
        delivered: bool | None = None,
        error: ProxyError | None = None,
        finish: str = "stop",
        stop: str = "",
        abort: str = "",
    ) -> Asked:
        """The call's end: finished, failed with an error, or aborted."""
        call.output_ids, call.logprobs = list(output), [-1.0] * len(output)
        call.finish = EngineFinish(reason=finish, matched=stop or None, prompt_ids=call.prompt.ids)  # type: ignore[arg-type]
        if parsed is None:
            parsed = (
                self.renderer.parse(output, stop)
                if isinstance(self.renderer, ToyRenderer)
                else self._parse(call, finish)
            )
        call.parsed = parsed
        if error is not None:
            record = records.failed(call, error, at=2000, now_s=2.0)
        elif abort:
            record = records.aborted(call, abort, at=2000, now_s=2.0)
        else:
            record = records.finished(call, at=2000, now_s=2.0)
        self.log.append(records.as_checkpoint(call, record) if is_checkpoint(call.call_seq) else record)
        assert call.prompt.placed is not None
        self.lineage.add(record, trail=call.prompt.placed.found.trail, is_claimed=True)
        if error is not None or abort:
            call.prompt.release()
        if delivered is not None:
            self.lineage.deliver(call.completion_id, is_delivered=delivered)
        assert parsed is not None
        made = tool_calls(
            *((tool_call_id(call.completion_id, i), c.name, c.arguments) for i, c in enumerate(parsed.tool_calls))
        )
        answer = assistant(parsed.text)
        if parsed.reasoning:
            answer["reasoning_content"] = parsed.reasoning
        if made:
            answer["tool_calls"] = made
        return Asked(
            record=self.log[-1],
            prompt=call.prompt.ids,
            answer=answer,
            call=call,
            messages=call.request.messages,
        )

    def _parse(self, call: Call, finish: str) -> ParsedReply:
        parser = self.renderer.parser(call.prompt.ids, is_parsing_tools=True, tools=call.request.tools)
        parser.feed(call.output_ids)
        return parser.finish(is_cut=finish == "length")[1]

    def ask(self, messages: list[dict[str, Any]], output: list[int], **options: Any) -> Asked:
        """A whole call. Options of `end`; all others belong to the request."""
        of_end = {
            name: options.pop(name)
            for name in ("parsed", "delivered", "error", "finish", "stop", "abort")
            if name in options
        }
        return self.end(self.begin(messages, **options), output, **of_end)

    def rebuilt(self) -> Lineage:
        """A lineage made from the log alone."""
        fresh = Lineage("p")
        for record in self.log:
            fresh.add(record)
        return fresh

    def reaches(self) -> dict[str, list[int]]:
        """Prompt and output of every call, resolved from the log."""
        from schemas.resolve import resolve

        resolved = resolve(self.log)
        assert all(not call.problem for call in resolved.calls.values())
        return {i: arrays.unpack_ids(call.reach()).tolist() for i, call in resolved.calls.items()}


def one_line(reaches: dict[str, list[int]], *asked: Asked) -> bool:
    """Whether each call's prompt begins with the whole of the one before: one trace."""
    whole = [reaches[a.id] for a in asked]
    return all(b[: len(a)] == a for a, b in itertools.pairwise(whole))


def renumbered(record: CompletionRecord, seq: int) -> CompletionRecord:
    """The record under another number."""
    return replace(record, call_seq=seq, completion_id=ids.completion_id(record.lease_id, record.writer, seq))
