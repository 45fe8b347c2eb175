"""Lives of sessions, fact by fact: fencing, attempts, ends, and what each move causes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from schemas.records import Record, SessionEvent, SessionState, Stage, StageCommand
from schemas.records import SessionEventType as Fact
from stream_processors.orchestrator.core import MOST_INITS_LOST, apply
from stream_processors.orchestrator.outputs import outputs
from stream_processors.orchestrator.row import SessionRow
from tests.stream_processors.orchestrator.facts import (
    SESSION,
    WORKER,
    external,
    fact,
    good_life,
    lease,
    play,
    registered,
    row_in,
)


class Session:
    """Feeds facts one by one and keeps what they cause."""

    def __init__(self, first: SessionEvent) -> None:
        self.first = first
        self.row: SessionRow | None = None
        self.caused: list[Record] = []
        self.offset = -1

    def feed(self, *facts: SessionEvent) -> list[Record]:
        """What these facts cause."""
        caused: list[Record] = []
        for f in facts:
            self.offset += 1
            after = apply(self.row, f, self.offset, (self.offset + 1) * 1000)
            if after is not None and after is not self.row:
                self.row = after
                caused += outputs(after, f, self.first)
        self.caused += caused
        return caused

    def facts(self, kind: Fact) -> list[SessionEvent]:
        return [r for r in self.caused if isinstance(r, SessionEvent) and r.type is kind]

    def commands(self) -> list[tuple[str, str]]:
        return [(str(r.stage), r.topic) for r in self.caused if isinstance(r, StageCommand)]


def lived(*facts: SessionEvent, first: SessionEvent | None = None) -> Session:
    first = first or registered()
    session = Session(first)
    session.feed(first, *facts)
    return session


def test_a_good_life() -> None:
    """Registered to ended: three commands to the holder, one grant, one end that expects trajectory and reward."""
    session = lived(*good_life())
    assert session.commands() == [
        ("init", "rollout.stage.init"),
        ("running", "rollout.stage.run"),
        ("postrun", "rollout.stage.postrun"),
    ]
    (granted,) = session.facts(Fact.GRANTED)
    assert (granted.lease_id, granted.worker_id, granted.incarnation) == (lease(), "w1", "i1")
    (ended,) = session.facts(Fact.ENDED)
    assert (ended.status, ended.boundary, ended.winning_lease) == ("completed", "none", lease())
    assert (ended.expects_trajectory, ended.expects_reward, ended.rewards) == (True, True, ["reward"])
    assert ended.spec == session.first.spec


def test_the_grant_precedes_the_run_command() -> None:
    """`ready` causes the grant only; the command to run is caused by the grant as it stands on the log."""
    assigned, ready, granted, *_ = good_life()
    session = lived(assigned)
    assert not any(isinstance(r, StageCommand) for r in session.feed(ready))
    assert any(isinstance(r, StageCommand) and r.stage is Stage.RUNNING for r in session.feed(granted))


def test_a_grant_that_stands_on_the_log_twice_commands_once() -> None:
    """A restart may publish the grant again; the holder isn't told twice with other times."""
    assigned, ready, granted, *_ = good_life()
    session = lived(assigned, ready, granted)
    assert session.feed(granted) == []


def test_commands_carry_what_a_worker_needs() -> None:
    """Addressee, attempt, round, lease, spec, task, and times from the causing fact on."""
    session = lived(*good_life()[:3])
    init, run = (r for r in session.caused if isinstance(r, StageCommand))
    assert (init.worker_id, init.incarnation, init.attempt, init.round, init.lease_id) == ("w1", "i1", 1, 1, "")
    assert (init.issued_at, init.deadline_at) == (2000, 2000 + 20_000)
    assert init.expires_at > init.deadline_at
    assert (run.lease_id, run.task, run.spec) == (lease(), session.first.task, session.first.spec)
    assert (run.issued_at, run.expires_at, run.deadline_at) == (4000, 104_000, 154_000)


def test_states_are_versioned_and_open_exactly_while_the_lease_is() -> None:
    """Proxies revoke on a state with the lease closed: it is open from the grant to the seal and at no other time."""
    session = lived(*good_life())
    states = [r for r in session.caused if isinstance(r, SessionState)]
    assert [s.state_version for s in states] == list(range(8))
    assert [(str(s.stage), s.lease_open) for s in states] == [
        ("queued", False),
        ("init", False),
        ("ready", True),
        ("ready", True),
        ("running", True),
        ("running", True),
        ("postrun", False),
        ("ended", False),
    ]


@pytest.mark.parametrize("stage", [Stage.QUEUED, Stage.INIT, Stage.READY, Stage.RUNNING, Stage.POSTRUN, Stage.ENDED])
def test_the_same_fact_again_causes_the_same_records(stage: Stage) -> None:
    """Row and fact alone determine the outputs, so a re-delivery repeats them under the same ids."""
    first = registered()
    row: SessionRow | None = None
    for n, f in enumerate([first, *good_life()]):
        row = apply(row, f, n, n * 1000)
        assert row is not None
        once, again = outputs(row, f, first), outputs(SessionRow.from_bytes(row.to_bytes()), f, first)
        assert [r.event_id for r in once] == [r.event_id for r in again]
        assert once == again
        if row.stage is stage:
            return


@pytest.mark.parametrize(
    "stray",
    [
        fact(Fact.STARTED, lease_id=lease(2), writers=[1]),
        fact(Fact.FINISHED, lease_id=lease(2), status="failed"),
        fact(Fact.SEALED, lease_id=lease(2), writers=[1]),
        fact(Fact.LEASE_EXPIRED, lease_id=lease(2)),
        fact(Fact.DEADLINE_HIT, stage=Stage.INIT, attempt=1, round=1),
        fact(Fact.DEADLINE_HIT, stage=Stage.RUNNING, attempt=2, round=1),
        fact(Fact.READY, attempt=1, round=2, worker_id="w2", incarnation="i2"),
    ],
    ids=lambda f: str(f.type),
)
def test_facts_of_another_lease_attempt_or_stage_do_nothing(stray: SessionEvent) -> None:
    """Fencing: a zombie's facts don't touch the session that runs."""
    row = row_in(Stage.RUNNING)
    assert apply(row, stray, 50, 99_000) is row


def test_the_first_ready_wins() -> None:
    """Two INITs of one attempt: the lease goes to the first, the second's `ready` changes nothing."""
    session = lived(good_life()[0])
    session.feed(
        fact(Fact.READY, attempt=1, round=1, worker_id="w2", incarnation="i2"),
        fact(Fact.READY, attempt=1, round=1, **WORKER),
    )
    assert [g.worker_id for g in session.facts(Fact.GRANTED)] == ["w2"]


def test_a_late_ready_is_taken_while_the_session_waits_again() -> None:
    """An INIT thought lost becomes ready: no second INIT is needed."""
    session = lived(good_life()[0], fact(Fact.INIT_LOST, attempt=1, round=1, **WORKER))
    session.feed(fact(Fact.READY, attempt=1, round=1, **WORKER))
    assert session.row is not None
    assert session.row.stage is Stage.READY
    assert len(session.facts(Fact.GRANTED)) == 1


def test_init_failures_use_up_the_attempts() -> None:
    """A second attempt is tried; then the session fails at the boundary that was reported, without a trajectory."""
    failing: dict[str, Any] = {"round": 1, "boundary": "sandbox", "error": "no image", **WORKER}
    session = lived()
    for attempt in (1, 2):
        session.feed(
            fact(Fact.INIT_ASSIGNED, attempt=attempt, round=1, stage=Stage.INIT, **WORKER),
            fact(Fact.INIT_FAILED, attempt=attempt, **failing),
        )
    (ended,) = session.facts(Fact.ENDED)
    assert (ended.status, ended.boundary, ended.error, ended.attempt) == ("failed", "sandbox", "no image", 2)
    assert (ended.expects_trajectory, ended.expects_reward, ended.winning_lease) == (False, False, "")


def test_declined_and_lost_assignments_cost_no_attempt() -> None:
    """The next round asks another worker; the attempt stays."""
    session = lived(
        good_life()[0],
        fact(Fact.DECLINED, attempt=1, round=1, **WORKER),
        fact(Fact.INIT_ASSIGNED, attempt=1, round=2, stage=Stage.INIT, **WORKER),
        fact(Fact.INIT_LOST, attempt=1, round=2, **WORKER),
    )
    assert session.row is not None
    assert (session.row.stage, session.row.attempt, session.row.round) == (Stage.QUEUED, 1, 2)


def test_declines_do_not_begin_the_queue_anew() -> None:
    """A session that is declined for ever waits no longer than its queue budget; time in INIT isn't time in the queue."""
    session = lived()
    for round_ in (1, 2, 3):
        session.feed(
            fact(Fact.INIT_ASSIGNED, attempt=1, round=round_, stage=Stage.INIT, **WORKER),
            fact(Fact.DECLINED, attempt=1, round=round_, **WORKER),
        )
    assert session.row is not None
    assert (session.row.queued_at, session.row.since_at) == (1000, 7000)
    session.feed(
        fact(Fact.INIT_ASSIGNED, attempt=1, round=4, stage=Stage.INIT, **WORKER),
        fact(Fact.INIT_LOST, attempt=1, round=4, **WORKER),
    )
    assert session.row.queued_at == 1000 + 1000


def test_preparing_that_kills_its_workers_comes_to_an_end() -> None:
    """Each attempt loses a few workers at most; then the session fails at the sandbox."""
    session = lived()
    for attempt in (1, 2):
        for round_ in range(1, MOST_INITS_LOST + 1):
            assert session.facts(Fact.ENDED) == []
            session.feed(
                fact(Fact.INIT_ASSIGNED, attempt=attempt, round=round_, stage=Stage.INIT, **WORKER),
                fact(Fact.INIT_LOST, attempt=attempt, round=round_, **WORKER),
            )
    (ended,) = session.facts(Fact.ENDED)
    assert (ended.status, ended.boundary, ended.attempt) == ("failed", "sandbox", 2)


def test_a_cancellation_that_the_worker_tells_first() -> None:
    """Cancelled while it is graded, a session ends as cancelled, whoever of worker and timer was faster."""
    session = lived(*good_life()[:6])
    session.feed(fact(Fact.GRADED, status="cancelled", error="enough", attempt=1, round=1, lease_id=lease(), **WORKER))
    (ended,) = session.facts(Fact.ENDED)
    assert (ended.status, ended.error, ended.expects_reward) == ("cancelled", "enough", False)


def test_a_run_that_ended_in_time_is_no_timeout() -> None:
    """The run's deadline passes while its seal is awaited: what `finished` said stands, with or without the seal."""
    held: dict[str, Any] = {"attempt": 1, "round": 1, "lease_id": lease(), **WORKER}
    hit = fact(Fact.DEADLINE_HIT, stage=Stage.RUNNING, attempt=1, round=1)
    sealed = lived(*good_life()[:5], hit)
    sealed.feed(*good_life()[5:])
    assert [e.status for e in sealed.facts(Fact.ENDED)] == ["completed"]
    unsealed = lived(*good_life()[:5], hit)
    unsealed.feed(fact(Fact.LEASE_EXPIRED, **held))
    assert [(e.status, e.boundary) for e in unsealed.facts(Fact.ENDED)] == [("failed", "sandbox")]


def test_a_registration_is_no_later_than_its_record() -> None:
    """A submitter whose clock is ahead would make every cancellation one of an earlier session."""
    assert lived(first=registered(at=9_000_000)).row == replace(lived().row or SessionRow(""), registered_at=1000)


def test_a_lost_worker_yields_the_next_attempt() -> None:
    """The old lease is sealed for its holder and marked as superseded; the new attempt has a lease of its own."""
    session = lived(*good_life()[:4])
    session.feed(fact(Fact.LEASE_EXPIRED, attempt=1, round=1, lease_id=lease(), **WORKER))
    (sealed,) = session.facts(Fact.SEALED)
    assert (sealed.lease_id, sealed.attempt, sealed.writers) == (lease(1), 1, [1])
    assert sealed.details["superseded"] is True
    session.feed(*good_life(attempt=2))
    (ended,) = session.facts(Fact.ENDED)
    assert (ended.winning_lease, ended.attempt, ended.status) == (lease(2), 2, "completed")


def test_a_lost_worker_without_an_attempt_left_ends_the_session() -> None:
    """Failed at the sandbox, with what was captured as its trajectory."""
    one = registered(task={"max_attempts": 1})
    session = lived(*good_life()[:4], first=one)
    caused = session.feed(fact(Fact.LEASE_EXPIRED, attempt=1, round=1, lease_id=lease(), **WORKER))
    assert [getattr(r, "type", "state") for r in caused] == [Fact.SEALED, Fact.ENDED, "state"]
    assert session.facts(Fact.SEALED)[0].details["superseded"] is False
    (ended,) = session.facts(Fact.ENDED)
    assert (ended.status, ended.boundary) == ("failed", "sandbox")
    assert (ended.expects_trajectory, ended.expects_reward, ended.winning_lease) == (True, False, lease())


def test_a_timed_out_run_is_still_sealed_built_and_graded() -> None:
    """The worker's own time-out: graded like any other, ended as a time-out that expects its reward."""
    *before, finished, sealed, graded = good_life()
    timeout = fact(
        Fact.FINISHED, attempt=1, lease_id=lease(), status="timeout", boundary="harness", error="50 s", **WORKER
    )
    assert finished.type is Fact.FINISHED
    session = lived(*before, timeout, sealed, graded)
    (ended,) = session.facts(Fact.ENDED)
    assert (ended.status, ended.boundary, ended.expects_trajectory, ended.expects_reward) == (
        "timeout",
        "harness",
        True,
        True,
    )


def test_an_overrun_gives_the_worker_a_moment_and_then_ends_the_lease() -> None:
    """At the deadline the holder may still seal; what it then tells doesn't hide that the deadline came first."""
    overrun = fact(Fact.DEADLINE_HIT, attempt=1, round=1, stage=Stage.RUNNING, lease_id=lease(), **WORKER)
    *before, finished, sealed, graded = good_life()
    session = lived(*before, overrun)
    assert not session.facts(Fact.SEALED)
    session.feed(finished, sealed, graded)
    assert session.facts(Fact.ENDED)[0].status == "timeout"

    stubborn = lived(*before, overrun)
    stubborn.feed(fact(Fact.LEASE_EXPIRED, attempt=1, round=1, lease_id=lease(), **WORKER))
    (ended,) = stubborn.facts(Fact.ENDED)
    assert (ended.status, ended.expects_trajectory, ended.attempt) == ("timeout", True, 1)
    assert stubborn.facts(Fact.SEALED)[0].lease_id == lease()


@pytest.mark.parametrize("steps", [0, 1])
def test_cancelling_without_a_lease_ends_at_once(steps: int) -> None:
    """Nothing was captured: no trajectory, no reward, no seal."""
    session = lived(*good_life()[:steps])
    session.feed(fact(Fact.CANCEL_REQUESTED, error="enough"))
    (ended,) = session.facts(Fact.ENDED)
    assert (ended.status, ended.error, ended.expects_trajectory, ended.winning_lease) == (
        "cancelled",
        "enough",
        False,
        "",
    )
    assert not session.facts(Fact.SEALED)


def test_cancelling_a_run_lets_its_worker_seal() -> None:
    """The worker kills, seals and tells; the session then ends as cancelled with its partial trajectory, ungraded."""
    *before, _, sealed, _ = good_life()
    session = lived(*before)
    assert not any(isinstance(r, SessionEvent) for r in session.feed(fact(Fact.CANCEL_REQUESTED)))
    finished = fact(Fact.FINISHED, lease_id=lease(), status="cancelled", **WORKER)
    session.feed(finished, sealed)
    (ended,) = session.facts(Fact.ENDED)
    assert (ended.status, ended.expects_trajectory, ended.expects_reward) == ("cancelled", True, False)
    assert ("postrun", "rollout.stage.postrun") not in session.commands()


def test_cancelling_a_run_whose_worker_does_nothing() -> None:
    """After its moment the lease expires: sealed for it, ended as cancelled, no further attempt."""
    session = lived(*good_life()[:4], fact(Fact.CANCEL_REQUESTED))
    session.feed(fact(Fact.LEASE_EXPIRED, attempt=1, round=1, lease_id=lease(), **WORKER))
    (ended,) = session.facts(Fact.ENDED)
    assert (ended.status, ended.attempt, ended.expects_trajectory) == ("cancelled", 1, True)
    assert len(session.facts(Fact.SEALED)) == 1


@pytest.mark.parametrize(
    ("graded", "expected"),
    [
        ({"status": "failed", "error": "boom"}, ("failed", "evaluator", "boom", False)),
        ({"status": "timeout", "boundary": "evaluator"}, ("failed", "evaluator", "", False)),
        ({"status": "failed", "boundary": "sandbox"}, ("failed", "sandbox", "", False)),
        ({"status": "completed", "expects_reward": False}, ("completed", "none", "", False)),
    ],
)
def test_a_failed_grading_is_the_evaluators(graded: dict[str, Any], expected: tuple[str, str, str, bool]) -> None:
    """A good run without a grade: failed at the evaluator (or where it says), with its trajectory and no reward."""
    session = lived(*good_life()[:6], fact(Fact.GRADED, lease_id=lease(), **graded))
    (ended,) = session.facts(Fact.ENDED)
    assert (ended.status, ended.boundary, ended.error, ended.expects_reward) == expected
    assert ended.expects_trajectory


def test_a_failed_run_keeps_its_own_boundary() -> None:
    """The harness failed and then the grading did, too: the first failure is told."""
    life = good_life()
    life[4] = fact(Fact.FINISHED, lease_id=lease(), status="failed", boundary="harness", error="exit 1")
    life[6] = fact(Fact.GRADED, lease_id=lease(), status="failed", boundary="evaluator", error="no file")
    (ended,) = lived(*life).facts(Fact.ENDED)
    assert (ended.status, ended.boundary, ended.error) == ("failed", "harness", "exit 1")


@pytest.mark.parametrize("kind", [Fact.LEASE_EXPIRED, Fact.DEADLINE_HIT])
def test_a_lost_grading_ends_the_session_with_its_trajectory(kind: Fact) -> None:
    """The run is captured; nobody runs it again for its grade."""
    lost = fact(kind, attempt=1, round=1, lease_id=lease(), stage=Stage.POSTRUN, **WORKER)
    (ended,) = lived(*good_life()[:6], lost).facts(Fact.ENDED)
    assert (ended.status, ended.boundary, ended.expects_trajectory, ended.expects_reward) == (
        "failed",
        "evaluator",
        True,
        False,
    )


def test_the_queue_has_a_budget() -> None:
    """No worker took it in time: a time-out of nobody's making."""
    (ended,) = lived(fact(Fact.DEADLINE_HIT, attempt=1, round=0, stage=Stage.QUEUED)).facts(Fact.ENDED)
    assert (ended.status, ended.boundary) == ("timeout", "none")
    assert "100 s" in ended.error


def test_there_is_one_end() -> None:
    """Whatever comes after the end, no second one is caused."""
    session = lived(*good_life())
    session.feed(
        *good_life(),
        fact(Fact.CANCEL_REQUESTED),
        fact(Fact.LEASE_EXPIRED, lease_id=lease()),
        fact(Fact.ENDED),
        fact(Fact.SEAL_OVERDUE, lease_id=lease()),
    )
    assert len(session.facts(Fact.ENDED)) == 1


# -- attached sessions --------------------------------------------------------------------------------------------------


def test_an_attached_session_is_granted_at_once_and_never_commanded() -> None:
    """Registered by its owner: granted to `external`, no stage command from end to end."""
    held = {"lease_id": lease(), "worker_id": "external"}
    session = lived(first=external())
    (granted,) = session.facts(Fact.GRANTED)
    assert (granted.worker_id, granted.lease_id, granted.deadline_at) == ("external", lease(), 90_000)
    session.feed(
        granted,
        fact(Fact.STARTED, writers=[1], **held),
        fact(Fact.SEALED, writers=[1], **held),
        fact(Fact.GRADED, status="completed", rewards=["reward"], expects_reward=True, **held),
    )
    assert session.commands() == []
    (ended,) = session.facts(Fact.ENDED)
    assert (ended.status, ended.expects_reward, ended.owner) == ("completed", True, "external")


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_an_attached_session_ends_at_its_deadline(steps: int) -> None:
    """Granted, running or sealed: at the deadline it ends as a time-out with what was captured."""
    held = {"lease_id": lease(), "worker_id": "external"}
    life = [fact(Fact.GRANTED, **held), fact(Fact.STARTED, writers=[1], **held), fact(Fact.SEALED, writers=[1], **held)]
    session = lived(*life[:steps], first=external())
    assert session.row is not None
    session.feed(fact(Fact.DEADLINE_HIT, attempt=1, round=0, stage=session.row.stage))
    (ended,) = session.facts(Fact.ENDED)
    assert (ended.status, ended.expects_trajectory, ended.expects_reward) == ("timeout", True, False)
    assert len(session.facts(Fact.SEALED)) == (0 if steps == 3 else 1)


def test_a_row_survives_its_bytes() -> None:
    """The table's value holds everything."""
    row = play(registered(), *good_life())
    assert SessionRow.from_bytes(row.to_bytes()) == row
    assert row.session_id == SESSION
