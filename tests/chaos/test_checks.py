"""The checks of a storm, each shown a log that it must refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from schemas.records import (
    Boundary,
    CallDisposition,
    CaptureGap,
    CompletionState,
    SessionEvent,
    SessionEventType,
    SessionState,
    Stage,
    Status,
    Trace,
)
from tests.chaos import checks
from tests.chaos.checks import Check, Evidence, judge
from tests.chaos.fixtures import GROUP, PLAIN, TWICE, call, nonce, scored, sound, trajectory
from tests.chaos.ledger import Ledger, Received
from tests.chaos.log import DeadLetter


def test_a_sound_log_has_no_violation() -> None:
    """Nothing is refused that is as it should be; repeats of a fact are no news."""
    seen = sound()
    assert judge(seen).violations == ()
    log = seen.log
    homes: list[list[Any]] = [log.events, log.opened, log.completions, log.sealed, log.built, log.scored, log.rewards]
    for records in homes:
        records.extend(list(records))
    assert judge(seen).violations == ()


def _without_end(seen: Evidence) -> None:
    seen.log.events = [e for e in seen.log.events if (e.session_id, e.type) != (PLAIN, SessionEventType.ENDED)]


def _two_ends(seen: Evidence) -> None:
    (end,) = seen.log.ends[PLAIN]
    seen.log.events.append(replace(end, status=Status.FAILED, boundary=Boundary.SANDBOX))


def _other_winner(seen: Evidence) -> None:
    (end,) = seen.log.ends[TWICE]
    seen.log.events.append(replace(end, winning_lease=seen.log.built[1].lease_id))


def _unnamed_end(seen: Evidence) -> None:
    seen.log.events = [
        replace(e, status=Status.FAILED) if e.type is SessionEventType.ENDED else e for e in seen.log.events
    ]


def _foreign_end(seen: Evidence) -> None:
    seen.log.events.append(SessionEvent(session_id="stranger", type=SessionEventType.ENDED, status=Status.COMPLETED))


def _open_state(seen: Evidence) -> None:
    seen.log.states.append(SessionState(session_id=PLAIN, stage=Stage.POSTRUN, state_version=10))


def _no_state(seen: Evidence) -> None:
    seen.log.states = [s for s in seen.log.states if s.session_id != TWICE]


def _missing_call(seen: Evidence) -> None:
    seen.log.completions = [c for c in seen.log.completions if nonce(2) not in c.text]


def _failed_call(seen: Evidence) -> None:
    seen.log.completions = [
        replace(c, state=CompletionState.FAILED) if nonce(2) in c.text else c for c in seen.log.completions
    ]


def _other_text(seen: Evidence) -> None:
    seen.log.completions = [replace(c, text=c.text.replace(nonce(3), nonce(99))) for c in seen.log.completions]


def _uncounted_call(seen: Evidence) -> None:
    kept = [c for c in seen.log.completions if c.session_id == PLAIN][:2]
    seen.log.built[0] = trajectory(kept, trained=True)


def _two_contents(seen: Evidence) -> None:
    seen.log.completions.append(replace(seen.log.completions[0], text="another answer"))


def _uncounted_lease(seen: Evidence) -> None:
    seen.log.built = [t for t in seen.log.built if t.session_id != TWICE]


def _wrong_sum(seen: Evidence) -> None:
    one = seen.log.built[0]
    seen.log.built[0] = replace(one, counts=replace(one.counts, trained=2))


def _wrong_fate(seen: Evidence) -> None:
    one = seen.log.built[0]
    calls = [replace(one.calls[0], disposition=CallDisposition.CONTEXT), *one.calls[1:]]
    seen.log.built[0] = replace(one, calls=calls)


def _trained_twice(seen: Evidence) -> None:
    one = seen.log.built[0]
    seen.log.built[0] = replace(one, traces=[*one.traces, Trace(turns=one.traces[0].turns[:1])])


def _counted_from_nowhere(seen: Evidence) -> None:
    calls = [c for c in seen.log.completions if c.session_id == PLAIN]
    seen.log.built[0] = trajectory([*calls, call(PLAIN, 1, 4, 77)], trained=True)


def _delivered_twice(seen: Evidence) -> None:
    seen.log.scored.append(replace(seen.log.scored[0], content_digest="other"))


def _delivered_again(seen: Evidence) -> None:
    seen.log.scored.append(replace(seen.log.scored[0], revision=2))


def _two_trajectories(seen: Evidence) -> None:
    seen.log.scored.append(replace(seen.log.scored[0], trajectory_id="another", content_digest="other"))


def _undelivered(seen: Evidence) -> None:
    del seen.log.scored[0]


def _revision_without_first(seen: Evidence) -> None:
    seen.log.scored[0] = replace(seen.log.scored[0], revision=2)


def _zombie_delivered(seen: Evidence) -> None:
    lost = trajectory([call(TWICE, 1, 1, 4)], trained=True)
    seen.log.scored[1] = scored(lost)


def _zombie_inside(seen: Evidence) -> None:
    one = seen.log.scored[1]
    assert one.trajectory is not None
    zombie = trajectory([call(TWICE, 1, 1, 4)], trained=True).calls
    seen.log.scored[1] = replace(one, trajectory=replace(one.trajectory, calls=[*one.trajectory.calls, *zombie]))


def _zombie_trains(seen: Evidence) -> None:
    seen.log.built[1] = trajectory([call(TWICE, 1, 1, 4)], trained=True)


def _stale_delivery(seen: Evidence) -> None:
    calls = [c for c in seen.log.completions if c.session_id == PLAIN]
    late = call(PLAIN, 1, 4, 77)
    seen.log.completions.append(late)
    seen.log.built.append(trajectory([*calls, late], trained=True, revision=2))


def _no_reward(seen: Evidence) -> None:
    seen.log.scored[0] = replace(seen.log.scored[0], reward=None)


def _foreign_reward(seen: Evidence) -> None:
    seen.log.rewards = [replace(r, lease_id="another") for r in seen.log.rewards]


def _unsealed(seen: Evidence) -> None:
    del seen.log.sealed[0]


def _sealed_short(seen: Evidence) -> None:
    seen.log.sealed[0] = replace(seen.log.sealed[0], last_seq=2)


def _sealed_twice(seen: Evidence) -> None:
    seen.log.sealed.append(replace(seen.log.sealed[0], last_seq=4))


def _never_opened(seen: Evidence) -> None:
    seen.log.completions.append(call(PLAIN, 1, 1, 78, writer=2))


def _incomplete(seen: Evidence) -> None:
    seen.log.built[0] = replace(seen.log.built[0], capture_incomplete=[CaptureGap(writer=1, after_seq=3)])


def _all_fail(seen: Evidence) -> None:
    seen.log.events = [
        replace(e, status=Status.FAILED, boundary=Boundary.SANDBOX, error="no disk")
        if e.type is SessionEventType.ENDED
        else e
        for e in seen.log.events
    ]


def _dead_letter(seen: Evidence) -> None:
    seen.log.dead.append(DeadLetter("capture.completions.assembler.dead", "id_conflict", "there"))


@pytest.mark.parametrize(
    ("doctor", "check", "says"),
    [
        (_without_end, checks.every_session_ends_once, "has no end (last facts: registered)"),
        (_two_ends, checks.every_session_ends_once, "2 different ends"),
        (_other_winner, checks.every_session_ends_once, "2 different ends"),
        (_unnamed_end, checks.every_session_ends_once, "no named boundary"),
        (_foreign_end, checks.every_session_ends_once, "nobody submitted"),
        (_open_state, checks.states_are_final, "its state is postrun"),
        (_no_state, checks.states_are_final, "has no state"),
        (_missing_call, checks.nothing_received_is_missing, "isn't on the log"),
        (_failed_call, checks.nothing_received_is_missing, "on the log it is failed"),
        (_other_text, checks.nothing_received_is_missing, "the log says"),
        (_uncounted_call, checks.nothing_received_is_missing, "no trajectory counts it"),
        (_two_contents, checks.no_reply_reaches_two_calls, "2 contents"),
        (_uncounted_lease, checks.counts_add_up, "no trajectory"),
        (_uncounted_call, checks.counts_add_up, "leaves out 1 calls"),
        (_counted_from_nowhere, checks.counts_add_up, "aren't on the log"),
        (_wrong_sum, checks.counts_add_up, "aren't 2 trained"),
        (_wrong_fate, checks.counts_add_up, "aren't those of its calls"),
        (_trained_twice, checks.counts_add_up, "in two traces"),
        (_delivered_twice, checks.delivered_once, "with 2 contents"),
        (_delivered_again, checks.delivered_once, "again with the same content"),
        (_two_trajectories, checks.delivered_once, "as 2 trajectories"),
        (_undelivered, checks.delivered_once, "never delivered"),
        (_revision_without_first, checks.delivered_once, "never delivered in revision 1"),
        (_zombie_delivered, checks.only_the_winner_contributes, "the winner is"),
        (_zombie_inside, checks.only_the_winner_contributes, "calls of another lease"),
        (_zombie_trains, checks.only_the_winner_contributes, "lost, and has 1 traces"),
        (_stale_delivery, checks.deliveries_are_current, "isn't the last trajectory"),
        (_no_reward, checks.deliveries_are_current, "has none"),
        (_foreign_reward, checks.deliveries_are_current, "isn't of the winning lease"),
        (_unsealed, checks.writers_are_sealed, "never sealed"),
        (_sealed_short, checks.writers_are_sealed, "its calls are 1 … 3"),
        (_sealed_twice, checks.writers_are_sealed, "sealed at [3, 4]"),
        (_never_opened, checks.writers_are_sealed, "never opened"),
        (_incomplete, checks.capture_is_whole, "writer 1 after 3"),
        (_all_fail, checks.most_sessions_complete, "no disk"),
        (_dead_letter, checks.dead_letters_are_empty, "id_conflict"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_doctored_log_is_refused(doctor: Callable[[Evidence], None], check: Check, says: str) -> None:
    """Each check finds what it is for, and says what it is."""
    seen = sound()
    doctor(seen)
    found = list(check(seen))
    assert found
    assert any(says in text for text in found), found


@pytest.mark.parametrize(
    ("change", "check", "says"),
    [
        ({"ledger": Ledger(received=(Received("nowhere", nonce(1)),))}, checks.nothing_received_is_missing, "nowhere"),
        ({"ledger": Ledger(returned=frozenset({nonce(55)}))}, checks.nothing_received_is_missing, "came back"),
        ({"ledger": Ledger(received=(Received("c", ""),) * 2)}, checks.no_reply_reaches_two_calls, "2 times"),
        ({"groups": ()}, checks.groups_are_whole, "never reached"),
        ({"groups": ((GROUP, (PLAIN, TWICE)),) * 2}, checks.groups_are_whole, "2 times"),
        ({"groups": ((GROUP, (PLAIN,)),)}, checks.groups_are_whole, "with the sessions"),
        ({"groups": ((GROUP, (PLAIN, TWICE)), ("g", ()))}, checks.groups_are_whole, "nobody submitted"),
        ({"leftovers": ("process 7 is left: x",)}, checks.nothing_is_left, "process 7"),
        ({"deaths": ("joiner ended by itself",)}, checks.nobody_died_by_itself, "joiner"),
    ],
)
def test_what_isnt_on_the_log_is_judged_too(change: dict[str, Any], check: Check, says: str) -> None:
    """The ledger, the trainer's groups, what is left, and parts that ended without being hit."""
    found = list(check(replace(sound(), **change)))
    assert any(says in text for text in found), found


def test_a_writer_that_was_only_asked_for_leaves_no_gap() -> None:
    """Its proxy died before it had opened: nobody can have called there."""
    seen = sound()
    seen.log.built[0] = replace(seen.log.built[0], capture_incomplete=[CaptureGap(writer=2, after_seq=0)])
    assert list(checks.capture_is_whole(seen)) == []


def test_every_check_is_run() -> None:
    """A violation of any check ends in the verdict, under the check's name."""
    seen = sound()
    seen.log.dead.append(DeadLetter("t", "r", "w"))
    verdict = judge(seen)
    assert not verdict.is_clean
    assert [str(v) for v in verdict.violations] == ["dead_letters_are_empty: t holds w (r)"]
    named = {
        v
        for k, v in vars(checks).items()
        if callable(v) and getattr(v, "__annotations__", {}).get("seen") == "Evidence"
    }
    assert named - {judge} == set(checks.CHECKS)
