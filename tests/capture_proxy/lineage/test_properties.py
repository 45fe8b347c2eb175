"""Random session trees: every record resolves to what the engine got, and the log alone gives the lineage that was there live."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from capture_proxy.lineage.index import Lineage
from capture_proxy.lineage.nodes import head_of
from capture_proxy.reply import ProxyError
from schemas import arrays
from schemas.resolve import resolve
from tests.capture_proxy.lineage.toy import Asked, ToyRenderer, World, assistant, system, tool, user

TOOLS = [{"type": "function", "function": {"name": "61"}}]


@dataclass(frozen=True)
class Step:
    """One call: which earlier one it goes on from (modulo), how the client treats history, what is sampled, how it ends."""

    parent: int
    kind: str
    output: tuple[int, ...]
    end: str
    tools: bool
    drop_thinking: bool


STEPS = st.lists(
    st.builds(
        Step,
        parent=st.integers(0, 30),
        kind=st.sampled_from(["turn", "turn", "turn", "retry", "root", "rewrite", "compact"]),
        output=st.lists(st.sampled_from([51, 52, 53, 61, 62, 71, 72]), min_size=1, max_size=4).map(tuple),
        end=st.sampled_from(["finished", "finished", "finished", "length", "failed", "aborted", "empty"]),
        tools=st.sampled_from([False, False, False, True]),
        drop_thinking=st.booleans(),
    ),
    min_size=1,
    max_size=25,
)


def request_of(step: Step, done: list[Asked]) -> list[dict[str, Any]]:
    """The messages that a client would send."""
    if not done or step.kind == "root":
        return [system("10"), user(f"2{step.parent % 3}")]
    before = done[step.parent % len(done)]
    if step.kind == "retry":
        return before.messages
    if step.kind == "compact":
        return [system("10"), user("33"), *before.messages[-1:]]
    answer = dict(before.answer)
    if step.drop_thinking:
        answer.pop("reasoning_content", None)
    if step.kind == "rewrite":
        answer = assistant("58")
    results = [tool("41", call["id"]) for call in answer.get("tool_calls") or ()]
    return [*before.messages, answer, *(results or [user("22")])]


def run(steps: list[Step], history: str) -> tuple[World, list[Asked]]:
    """The whole session."""
    world, done = World(history=history, renderer=ToyRenderer(glue=True)), []
    everything: list[Asked] = []
    for step in steps:
        ends: dict[str, Any] = {
            "failed": {"error": ProxyError("engine_error", "x")},
            "aborted": {"abort": "client_left"},
            "length": {"finish": "length"},
        }.get(step.end, {})
        output = [] if step.end == "empty" else [*step.output, *([99] if step.end == "finished" else [])]
        asked = world.ask(request_of(step, done), output, tools=TOOLS if step.tools else [], **ends)
        everything.append(asked)
        if step.end not in {"failed", "aborted"}:
            done.append(asked)
    return world, everything


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from(["sampled", "template"]), st.randoms(use_true_random=False))
def test_the_log_holds_what_the_engine_got(steps: list[Step], history: str, rng: random.Random) -> None:
    """Delta-resolved equals full, in any order; a parent is finished, of this line, and begins the child's prompt token by token."""
    world, everything = run(steps, history)
    log = [*world.log, rng.choice(world.log)]
    rng.shuffle(log)
    calls = resolve(log).calls
    by_id = {asked.id: asked for asked in everything}
    for asked in everything:
        call = calls[asked.id]
        assert call.problem == ""
        assert arrays.unpack_ids(call.prompt()).tolist() == asked.prompt
        assert len(call.messages()) == len(asked.messages)
        assert [m["role"] for m in call.messages()] == [m["role"] for m in asked.messages]
        if asked.parent_id:
            parent = by_id[asked.parent_id]
            assert parent.record.state == "finished"
            reach = [*parent.prompt, *arrays.unpack_ids(parent.record.output_ids).tolist()]
            assert asked.prompt[: len(reach)] == reach
            assert parent.record.tools_digest == asked.record.tools_digest
        else:
            assert asked.record.lineage in {"root", "ambiguous"}
            assert asked.record.lineage_reason


@settings(max_examples=40, deadline=None)
@given(STEPS, st.randoms(use_true_random=False))
def test_a_lineage_from_the_log_answers_like_the_live_one(steps: list[Step], rng: random.Random) -> None:
    """Whatever order the records come in, each call's continuation has the same parent."""
    world, everything = run(steps, "sampled")
    log = list(world.log)
    rng.shuffle(log)
    rebuilt = Lineage("p")
    for record in log:
        rebuilt.add(record)
    assert set(rebuilt.nodes) == set(world.lineage.nodes)
    for node in world.lineage.nodes.values():
        again = rebuilt.nodes[node.completion_id]
        assert (again.end, again.length, again.head) == (node.end, node.length, node.head)
        assert again.call.reach() == node.call.reach()
    for asked in everything:
        ask = [*asked.messages, asked.answer, user("22")]
        head = head_of(asked.record.tools_digest, {})
        live, read = world.lineage.find(ask, head), rebuilt.find(ask, head)
        world.lineage.release(live.parent_id)
        rebuilt.release(read.parent_id)
        assert (live.status, live.new_from) == (read.status, read.new_from)
