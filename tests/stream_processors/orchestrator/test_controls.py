"""Pauses, drains, resumes and cancels as they are read from the log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schemas.records import Control, ControlAction
from stream_processors.orchestrator.controls import ISSUER, RENEW_AFTER_MS, Controls

PAUSE, DRAIN, RESUME, CANCEL = ControlAction.PAUSE, ControlAction.DRAIN, ControlAction.RESUME, ControlAction.CANCEL
NAMES = {"session": "s", "group": "g", "task": "t", "policy": "p"}
NOW = 10_000


def control(action: ControlAction, at: int, kind: str = "policy", target: str = "p", *, for_ms: int = 0) -> Control:
    name = f"{action}-{at}-{target}"
    return Control(control_id=name, action=action, target_kind=kind, target=target, at=at, for_ms=for_ms)


def actions(view: Controls) -> dict[tuple[str, str], ControlAction]:
    """What is in force."""
    return {place: span.action for place, span in view.in_force(NOW).items()}


@pytest.mark.parametrize(
    ("told", "now"),
    [
        ([], None),
        ([(PAUSE, 1)], PAUSE),
        ([(PAUSE, 1), (RESUME, 2)], None),
        ([(PAUSE, 1), (RESUME, 2), (PAUSE, 3)], PAUSE),
        ([(PAUSE, 1), (DRAIN, 2)], DRAIN),
        ([(DRAIN, 1), (PAUSE, 2)], PAUSE),
        ([(RESUME, 1)], None),
    ],
)
def test_the_last_word_about_a_target_counts(told: list[tuple[ControlAction, int]], now: ControlAction | None) -> None:
    """In the order of the log's times, in whatever order they are read."""
    controls = [control(action, at) for action, at in told]
    assert Controls.of(*controls).holds(NAMES, NOW) is now
    assert Controls.of(*reversed(controls)).holds(NAMES, NOW) is now


def test_a_pause_of_any_of_its_names_holds_a_thing() -> None:
    """The stronger of two words counts; others' names don't."""
    drained = control(DRAIN, 1, "task", "t")
    assert Controls.of(drained).holds(NAMES, NOW) is DRAIN
    assert Controls.of(drained, control(PAUSE, 2)).holds(NAMES, NOW) is PAUSE
    assert Controls.of(control(PAUSE, 1, "task", "other")).holds(NAMES, NOW) is None


def test_resuming_the_fleet_resumes_every_part_of_it() -> None:
    """What is paused afterwards is paused."""
    everything = control(RESUME, 5, "fleet", "*")
    assert Controls.of(control(PAUSE, 1), control(PAUSE, 2, "fleet", "*"), everything).holds(NAMES, NOW) is None
    assert Controls.of(everything, control(PAUSE, 6)).holds(NAMES, NOW) is PAUSE


def test_paused_time_is_counted_once() -> None:
    """Overlapping pauses of several names, cut to the time in question; a drain isn't a pause."""
    view = Controls.of(
        control(PAUSE, 100),
        control(RESUME, 200),
        control(PAUSE, 150, "task", "t"),
        control(RESUME, 300, "task", "t"),
        control(DRAIN, 400),
        control(RESUME, 450),
        control(PAUSE, 900),
    )
    assert view.paused_ms(NAMES, 0, 1000) == 200 + 100
    assert view.paused_ms(NAMES, 120, 180) == 60
    assert view.paused_ms(NAMES, 300, 900) == 0
    assert view.paused_ms({"policy": "other"}, 0, 1000) == 0


def test_a_node_is_held_by_its_own_name_only() -> None:
    """A paused fleet gives out no sessions, but its workers aren't what is held."""
    view = Controls.of(control(DRAIN, 1, "node", "w1"), control(PAUSE, 1, "fleet", "*"))
    assert view.holds_node("w1", NOW)
    assert not view.holds_node("w2", NOW)
    assert not Controls.of(control(DRAIN, 1, "node", "w1"), control(RESUME, 2, "node", "w1")).holds_node("w1", NOW)


def test_what_stays_in_force_is_told_again_before_retention_takes_it() -> None:
    """Under its own id, in force since it was first told; a resume that came between stands, whatever was read."""
    view = Controls.of(
        control(PAUSE, 1000), control(PAUSE, 1000, "task", "done"), control(RESUME, 2000, "task", "done")
    )
    assert view.renewals(RENEW_AFTER_MS) == []
    (again,) = view.renewals(1000 + RENEW_AFTER_MS)
    assert (again.control_id, again.issuer, again.at) == ("pause-1000-p", ISSUER, 1000)
    view.take(again, 1000 + RENEW_AFTER_MS)
    assert view.renewals(1000 + RENEW_AFTER_MS) == []
    assert view.paused_ms(NAMES, 0, 5000) == 4000
    # Retention has taken the first telling; the resume was told before the second.
    late = Controls()
    late.take(replace(control(RESUME, 0), control_id="r"), 3000)
    late.take(again, 1000 + RENEW_AFTER_MS)
    assert late.holds(NAMES, NOW) is None


def test_a_pause_for_some_time_ends_by_itself() -> None:
    """Counted from when the log has it; until then it holds as any other, and the time it took is paused time."""
    view = Controls()
    view.take(control(PAUSE, 0, for_ms=500), 1000)
    assert [view.holds(NAMES, now) for now in (1000, 1499, 1500)] == [PAUSE, PAUSE, None]
    assert view.in_force(1499)["policy", "p"].to_at == 1500
    assert view.in_force(1500) == {}
    assert view.paused_ms(NAMES, 0, 9000) == 500
    node = Controls.of(control(DRAIN, 1, "node", "w1", for_ms=10))
    assert [node.holds_node("w1", now) for now in (10, 11)] == [True, False]


@pytest.mark.parametrize(
    ("more", "ends_at"),
    [
        ([(RESUME, 300, 0)], 300),
        ([(PAUSE, 300, 0)], None),
        ([(PAUSE, 300, 100)], 400),
        ([(PAUSE, 300, 900)], 1200),
        ([(PAUSE, 700, 900)], 1600),
        ([(RESUME, 700, 0)], 600),
        ([(DRAIN, 300, 100)], 300),
    ],
)
def test_the_last_word_says_until_when(more: list[tuple[ControlAction, int, int]], ends_at: int | None) -> None:
    """Sooner, later or for ever; one that comes when it is over begins anew."""
    view = Controls.of(control(PAUSE, 100, for_ms=500), *(control(action, at, for_ms=ms) for action, at, ms in more))
    pauses = [span for span in view._spans_of(("policy", "p")) if span.action is PAUSE]
    assert pauses[-1].to_at == ends_at


def test_a_long_pause_is_told_again_with_its_end() -> None:
    """And once it is over no more, and it is forgotten."""
    view = Controls.of(control(PAUSE, 0, for_ms=2 * RENEW_AFTER_MS))
    (again,) = view.renewals(RENEW_AFTER_MS)
    view.take(again, RENEW_AFTER_MS)
    assert view.holds(NAMES, 2 * RENEW_AFTER_MS - 1) is PAUSE
    assert view.holds(NAMES, 2 * RENEW_AFTER_MS) is None
    assert view.renewals(3 * RENEW_AFTER_MS) == []
    view.forget(3 * RENEW_AFTER_MS)
    assert view._standing == {}


def test_cancels_are_forgotten_with_the_logs_retention() -> None:
    """A restart wouldn't know them either."""
    view = Controls.of(control(CANCEL, 10), control(CANCEL, 20))
    assert len(view.cancels) == 2
    view.forget(20)
    assert [c.at for c in view.cancels] == [20]


def test_a_control_that_is_read_twice_counts_once() -> None:
    """Views read the log again after an outage."""
    view = Controls()
    for _ in range(2):
        view.take(control(CANCEL, 1), 10)
        view.take(control(PAUSE, 1), 10)
    assert len(view.cancels) == 1
    assert actions(view) == {("policy", "p"): PAUSE}


def test_old_words_are_forgotten_and_nothing_else_changes() -> None:
    """A trainer that pauses its policy at every step leaves nothing behind; what is still paused stays so, with its renewals."""
    told = [control(action, at) for at in range(0, 1000, 2) for action in (PAUSE, RESUME)]
    told = [replace(c, control_id=f"{n}", at=n) for n, c in enumerate(told)]
    view = Controls.of(
        *told,
        control(DRAIN, 3, "node", "w1"),
        control(PAUSE, 4, "policy", "other"),
        control(PAUSE, 5, "policy", "resumed with the fleet"),
        control(RESUME, 6, "fleet", "*"),
        control(DRAIN, 7, "node", "w2"),
    )
    before = actions(view)
    assert before == {("node", "w2"): DRAIN}
    view.forget(998)
    assert actions(view) == before
    assert [c.control_id for c in view._standing["policy", "p"]] == ["998", "999"]
    assert set(view._standing) == {("policy", "p"), ("node", "w2")}
    assert len(view._told_at) == 3
    assert [c.target for c in view.renewals(8 + RENEW_AFTER_MS)] == ["w2"]
    assert view.holds(NAMES, NOW) is None
