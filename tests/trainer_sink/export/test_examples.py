"""Which sessions are accepted, and which of their traces become examples."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.records import ScoredTrajectory, Status
from schemas.wishes import GroupWish, Patterns
from tests.trainer_sink.export.talks import BASH, SYSTEM, USER, call, calls, result, run, says, talk, traced
from trainer_sink.export.examples import Acceptance, Choice, Examples, examples_of
from trainer_sink.export.shape import Shape


def examples(*traces: Any, choice: Choice | None = None, shape: Shape | None = None) -> Examples:
    return examples_of(run("t", traces=traces), choice or Choice(), shape or Shape())


@pytest.mark.parametrize(
    ("reason", "session", "wish"),
    [
        ("", run("t"), GroupWish()),
        ("", run("a/t", spec={"metadata": {"repo": "django"}}), GroupWish(tasks=Patterns.of(["a/*"]))),
        ("policy", run("t"), GroupWish(policy_id="other")),
        ("task", run("t"), GroupWish(tasks=Patterns.of(["a/*"]))),
        ("harness", run("t"), GroupWish(harnesses=Patterns.of("pi"))),
        ("metadata", run("t"), GroupWish(metadata={"repo": Patterns(("django",))})),
        ("status_failed", run("t", status=Status.FAILED), GroupWish()),
        ("no_reward", run("t", reward=None), GroupWish()),
        ("reward", run("t", reward=0.99), GroupWish()),
        ("reward", run("t", reward=float("nan")), GroupWish()),
        ("no_traces", run("t", traces=[]), GroupWish()),
    ],
)
def test_acceptance(reason: str, session: ScoredTrajectory, wish: GroupWish) -> None:
    """Each refusal has a name; what isn't asked for comes before what isn't good enough."""
    assert Acceptance(wish=wish).refuses(session) == reason


def test_time_outs_and_ungraded_sessions_when_asked_for() -> None:
    """A partial trajectory of a session that ran out of time."""
    lenient = Acceptance(statuses=frozenset({Status.TIMEOUT}), min_reward=None)
    assert lenient.refuses(run("t", status=Status.TIMEOUT, reward=None)) == ""


def test_branches() -> None:
    """The main line; others by name; side calls not unless somebody names them."""
    side = traced([USER, says("a title")], index=2, branch="aux")
    traces = [traced(talk()), traced([USER, says("sub")], index=1, branch="sub-agent"), side]
    found = examples(*traces)
    assert [e.trace.index for e in found.taken] == [0]
    assert found.left_out == {"branch_sub-agent": 1, "branch_aux": 1}
    both = examples(*traces, choice=Choice(branches=frozenset({"main", "sub-agent"})))
    assert [e.trace.index for e in both.taken] == [0, 1]


def test_lengths_and_cuts() -> None:
    """By the engine's tokens; a last reply that ran out of them isn't an answer."""
    assert examples(traced(talk(), size=10), choice=Choice(max_tokens=9)).left_out == {"too_long": 1}
    assert examples(traced(talk(), size=10), choice=Choice(min_tokens=11)).left_out == {"too_short": 1}
    assert examples(traced(talk(), size=10), choice=Choice(min_tokens=10, max_tokens=10)).taken
    cut = traced(talk(), finish_reason="length")
    assert examples(cut).left_out == {"cut": 1}
    assert examples(cut, choice=Choice(allow_cut=True)).taken


def test_a_compacted_conversation_gives_several_examples() -> None:
    """What begins anew with a summary isn't what it was before."""
    later = [SYSTEM, {"role": "user", "content": "So far: the bug is in line 3."}, says("Fixed.")]
    found = examples(traced(talk()), traced(later, index=1, root_reason="context_replaced"))
    assert [e.trace.index for e in found.taken] == [0, 1]


def test_a_conversation_within_a_longer_one_is_taken_once() -> None:
    """Trace per request: each holds the ones before it. Reasoning that the history lost on the way is put back."""
    first = [USER, calls(call("read", {"a": 1}), reasoning_content="Look first.")]
    second = [USER, calls(call("read", {"a": 1})), result("x"), says("ok", reasoning_content="Good.")]
    found = examples(traced(first), traced(second, index=1))
    (example,) = found.taken
    assert found.left_out == {"contained": 1}
    assert example.conversation.messages[1]["reasoning_content"] == "Look first."
    assert example.conversation.messages[3]["reasoning_content"] == "Good."
    assert (
        "reasoning_content"
        not in examples(traced(first), traced(second, index=1), shape=Shape(keep_reasoning=False))
        .taken[0]
        .conversation.messages[1]
    )


def test_under_other_tools_it_is_another_conversation() -> None:
    """The prompt's head is another one."""
    found = examples(traced([*talk()[:4], says("a")]), traced([*talk()[:4], says("a")], index=1, tools=[BASH]))
    assert len(found.taken) == 2
    assert len({e.digest for e in found.taken}) == 2


def test_the_longer_one_that_is_refused_leaves_the_shorter() -> None:
    """Filters come before containment: what fits is exported."""
    short, long = traced(talk()[:3], size=5), traced(talk(), index=1, size=50)
    found = examples(short, long, choice=Choice(max_tokens=10))
    assert [e.trace.index for e in found.taken] == [0]
    assert found.left_out == {"too_long": 1}
