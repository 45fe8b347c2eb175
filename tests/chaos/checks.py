"""What must hold after a storm, checked on the log and the harnesses' ledger alone. Pure: each check gives its violations."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from schemas.records import (
    Boundary,
    CallDisposition,
    CompletionRecord,
    CompletionState,
    SessionState,
    Stage,
    Status,
    Trajectory,
)
from tests.chaos.ledger import NONCE, Ledger
from tests.chaos.log import Log

TERMINAL: Final = frozenset({Status.COMPLETED, Status.FAILED, Status.TIMEOUT, Status.CANCELLED})
UNNAMED: Final = frozenset({Boundary.NONE, Boundary.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Evidence:
    """All that is judged. `expected`: each group's sessions. `groups`: what a trainer got, group by group, in order."""

    log: Log
    ledger: Ledger
    expected: Mapping[str, Sequence[str]]
    groups: Sequence[tuple[str, tuple[str, ...]]] = ()
    leftovers: Sequence[str] = ()
    deaths: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not be: the check's name and what it found."""

    check: str
    text: str

    def __str__(self) -> str:
        """One line of a report."""
        return f"{self.check}: {self.text}"


def every_session_ends_once(seen: Evidence) -> Iterator[str]:
    """Each submitted session has one terminal fact (repeats say the same), with a named status, and a named boundary if it failed."""
    ends = seen.log.ends
    submitted = {session for sessions in seen.expected.values() for session in sessions}
    for session_id in sorted(submitted - ends.keys()):
        last = [e.type for e in seen.log.events if e.session_id == session_id][-3:]
        yield f"session {session_id} has no end (last facts: {', '.join(last) or 'none'})"
    for session_id in sorted(ends.keys() - submitted):
        yield f"session {session_id} ended, but nobody submitted it"
    for session_id, facts in sorted(ends.items()):
        told = {(e.status, e.boundary, e.winning_lease, e.expects_trajectory, e.expects_reward) for e in facts}
        if len(told) > 1:
            yield f"session {session_id} has {len(told)} different ends: {sorted(map(str, told))}"
        end = facts[0]
        if end.status not in TERMINAL:
            yield f"session {session_id} ended in no named state: {end.status}"
        if end.status is Status.FAILED and end.boundary in UNNAMED:
            yield f"session {session_id} failed at no named boundary: {end.error}"


def states_are_final(seen: Evidence) -> Iterator[str]:
    """By the highest version, each session's state is ended and open no more, as its terminal fact says."""
    newest: dict[str, SessionState] = {}
    for state in seen.log.states:
        if state.session_id not in newest or state.state_version >= newest[state.session_id].state_version:
            newest[state.session_id] = state
    for session_id, facts in sorted(seen.log.ends.items()):
        final = newest.get(session_id)
        if final is None:
            yield f"session {session_id} has no state"
        elif final.stage is not Stage.ENDED or final.lease_open or final.status is not facts[0].status:
            yield (
                f"session {session_id} ended {facts[0].status}, its state is {final.stage}/{final.status}"
                f"{', its lease open' if final.lease_open else ''} (version {final.state_version})"
            )


def nothing_received_is_missing(seen: Evidence) -> Iterator[str]:
    """Every reply that a harness received in full stands on the log as a finished call, and its lease's trajectory counts it."""
    by_nonce: dict[str, CompletionRecord] = {}
    by_id: dict[str, CompletionRecord] = {}
    for record in seen.log.completions:
        by_id[record.completion_id] = record
        if (found := NONCE.search(record.text)) is not None:
            by_nonce[found.group()] = record
    counted = {c.completion_id for t in seen.log.last_built.values() for c in t.calls}
    acknowledged: dict[str, CompletionRecord] = {}
    for one in seen.ledger.received:
        call = by_id.get(one.completion_id)
        if call is None:
            yield f"an agent received call {one.completion_id} ({one.nonce}), which isn't on the log"
            continue
        acknowledged[call.completion_id] = call
        if one.nonce and one.nonce not in call.text:
            yield f"call {one.completion_id} reached an agent with {one.nonce}, the log says {call.text!r}"
    for nonce in sorted(seen.ledger.returned):
        call = by_nonce.get(nonce)
        if call is None:
            yield f"the reply with {nonce} came back to the engine in a later prompt, and isn't on the log"
            continue
        acknowledged[call.completion_id] = call
    for call in acknowledged.values():
        if call.state is not CompletionState.FINISHED:
            yield f"call {call.completion_id} was received in full, on the log it is {call.state}"
        if call.completion_id not in counted:
            yield f"call {call.completion_id} of session {call.session_id} was received, and no trajectory counts it"


def no_reply_reaches_two_calls(seen: Evidence) -> Iterator[str]:
    """An answer reaches an agent once; one id has one content."""
    twice = Counter(r.completion_id for r in seen.ledger.received)
    for completion_id, times in sorted(twice.items()):
        if times > 1:
            yield f"call {completion_id} reached an agent {times} times"
    contents: dict[str, set[tuple[object, ...]]] = defaultdict(set)
    for r in seen.log.completions:
        contents[r.completion_id].add((r.state, r.request_digest, r.text, r.output_ids))
    for completion_id, found in sorted(contents.items()):
        if len(found) > 1:
            yield f"call {completion_id} stands on the log with {len(found)} contents"


def counts_add_up(seen: Evidence) -> Iterator[str]:
    """Of each lease with calls: the last revision lists exactly the calls on the log, each in one state, and the sums are right."""
    on_log: dict[str, set[str]] = defaultdict(set)
    for opening in seen.log.opened:
        on_log.setdefault(opening.lease_id, set())
    for record in seen.log.completions:
        on_log[record.lease_id].add(record.completion_id)
    last = seen.log.last_built
    for lease_id, calls in sorted(on_log.items()):
        trajectory = last.get(lease_id)
        if trajectory is None:
            yield f"lease {lease_id} has {len(calls)} calls on the log, and no trajectory"
            continue
        yield from _sums(trajectory)
        listed = {c.completion_id for c in trajectory.calls}
        if missing := calls - listed:
            yield f"lease {lease_id}: its last revision leaves out {len(missing)} calls of the log, such as {min(missing)}"
        if foreign := listed - calls:
            yield f"lease {lease_id}: its last revision counts {len(foreign)} calls that aren't on the log, such as {min(foreign)}"


def _sums(trajectory: Trajectory) -> Iterator[str]:
    counts, where = trajectory.counts, f"lease {trajectory.lease_id} revision {trajectory.revision}"
    listed = Counter(c.disposition for c in trajectory.calls)
    if len({c.completion_id for c in trajectory.calls}) != len(trajectory.calls):
        yield f"{where} lists a call twice"
    untrainable = sum(counts.untrainable.values())
    if counts.calls != counts.trained + counts.context + untrainable or counts.calls != len(trajectory.calls):
        yield (
            f"{where}: {counts.calls} calls aren't {counts.trained} trained + {counts.context} context + "
            f"{untrainable} untrainable ({len(trajectory.calls)} listed)"
        )
    told = {
        CallDisposition.TRAINED: counts.trained,
        CallDisposition.CONTEXT: counts.context,
        CallDisposition.UNTRAINABLE: untrainable,
    }
    if any(listed[state] != number for state, number in told.items()):
        yield f"{where}: the counts {told} aren't those of its calls {dict(listed)}"
    trained_in = Counter(t.completion_id for trace in trajectory.traces for t in trace.turns if t.is_trained)
    if any(times > 1 for times in trained_in.values()):
        yield f"{where} trains a call in two traces"
    if set(trained_in) != {c.completion_id for c in trajectory.calls if c.disposition is CallDisposition.TRAINED}:
        yield f"{where}: the turns with a loss aren't the calls that count as trained"


def delivered_once(seen: Evidence) -> Iterator[str]:
    """After de-duplication by (trajectory_id, revision) each is there once, revisions differ, and a session has one trajectory."""
    contents: dict[tuple[str, int], set[str]] = defaultdict(set)
    of_session: dict[str, set[str]] = defaultdict(set)
    for scored in seen.log.scored:
        contents[scored.trajectory_id, scored.revision].add(scored.content_digest)
        of_session[scored.session_id].add(scored.trajectory_id)
    for (trajectory_id, revision), digests in sorted(contents.items()):
        if len(digests) > 1:
            yield f"revision {revision} of trajectory {trajectory_id} was delivered with {len(digests)} contents"
    by_trajectory: dict[str, list[str]] = defaultdict(list)
    for (trajectory_id, _), digests in sorted(contents.items()):
        by_trajectory[trajectory_id] += digests
    for trajectory_id, listed in sorted(by_trajectory.items()):
        if len(set(listed)) < len(listed):
            yield f"trajectory {trajectory_id} was delivered again with the same content under another revision"
        if (trajectory_id, 1) not in contents:
            yield f"trajectory {trajectory_id} was never delivered in revision 1"
    for session_id, ids in sorted(of_session.items()):
        if len(ids) > 1:
            yield f"session {session_id} was delivered as {len(ids)} trajectories: {sorted(ids)}"
    for session_id in sorted(seen.log.ends.keys() - of_session.keys()):
        yield f"session {session_id} ended and was never delivered"


def only_the_winner_contributes(seen: Evidence) -> Iterator[str]:
    """What is delivered is of the winning lease alone; the other leases' trajectories have no trace."""
    winners = {session_id: facts[0].winning_lease for session_id, facts in seen.log.ends.items()}
    for scored in seen.log.scored:
        winner = winners.get(scored.session_id)
        if winner is None:
            continue
        inner = scored.trajectory
        if scored.lease_id != winner:
            yield f"session {scored.session_id} was delivered with lease {scored.lease_id}, the winner is {winner}"
        if inner is not None and (inner.lease_id != winner or any(c.lease_id != winner for c in inner.calls)):
            yield f"session {scored.session_id}: its delivered trajectory holds calls of another lease than the winner's"
    for lease_id, trajectory in sorted(seen.log.last_built.items()):
        winner = winners.get(trajectory.session_id)
        if winner is not None and lease_id != winner and (trajectory.traces or trajectory.counts.trained):
            yield f"session {trajectory.session_id}: lease {lease_id} lost, and has {len(trajectory.traces)} traces"


def deliveries_are_current(seen: Evidence) -> Iterator[str]:
    """The last delivery holds the winning lease's last trajectory, and a reward where the end promises one."""
    last_built = seen.log.last_built
    rewarded = {(r.session_id, r.lease_id) for r in seen.log.rewards}
    for session_id, scored in sorted(seen.log.last_scored.items()):
        facts = seen.log.ends.get(session_id)
        if facts is None:
            yield f"session {session_id} was delivered and has no end"
            continue
        end = facts[0]
        built = last_built.get(end.winning_lease)
        if end.expects_trajectory and (
            built is None or scored.trajectory is None or built.content_digest != scored.trajectory.content_digest
        ):
            yield f"session {session_id}: the last delivery isn't the last trajectory of lease {end.winning_lease}"
        if end.expects_reward and scored.reward is None:
            yield f"session {session_id}: a reward is expected, and the delivery has none"
        if scored.reward is not None and (session_id, end.winning_lease) not in rewarded:
            yield f"session {session_id}: its reward isn't of the winning lease"


def writers_are_sealed(seen: Evidence) -> Iterator[str]:
    """Every opened writer is sealed, with one last number, and its calls are 1 … last."""
    sealed: dict[tuple[str, int], set[int]] = defaultdict(set)
    for seal in seen.log.sealed:
        sealed[seal.lease_id, seal.writer].add(seal.last_seq)
    numbers: dict[tuple[str, int], set[int]] = defaultdict(set)
    for record in seen.log.completions:
        numbers[record.lease_id, record.writer].add(record.call_seq)
    opened = {(o.lease_id, o.writer): o for o in seen.log.opened}
    for place in sorted(numbers.keys() - opened.keys()):
        yield f"writer {place[1]} of lease {place[0]} has calls and was never opened"
    for (lease_id, writer), opening in sorted(opened.items()):
        where = f"writer {writer} of lease {lease_id} (session {opening.session_id}, proxy {opening.proxy_id})"
        ends, calls = sealed.get((lease_id, writer), set()), numbers.get((lease_id, writer), set())
        if not ends:
            yield f"{where} was never sealed"
        elif len(ends) > 1:
            yield f"{where} is sealed at {sorted(ends)}"
        elif calls != set(range(1, max(ends) + 1)):
            yield f"{where} is sealed at {max(ends)}, its calls are {_shown(calls)}"


def capture_is_whole(seen: Evidence) -> Iterator[str]:
    """No disk was lost, so no lease's last revision may say that calls of an opened writer never reached the log.

    A writer of whom only the asking is known (its proxy died before it had opened) has had no call.
    """
    opened = {(o.lease_id, o.writer) for o in seen.log.opened}
    for lease_id, trajectory in sorted(seen.log.last_built.items()):
        real = [g for g in trajectory.capture_incomplete if (lease_id, g.writer) in opened]
        if real:
            gaps = ", ".join(f"writer {g.writer} after {g.after_seq}" for g in real)
            yield f"lease {lease_id} of session {trajectory.session_id} is incomplete: {gaps}"


def dead_letters_are_empty(seen: Evidence) -> Iterator[str]:
    """Nothing was set aside: no record of ours is poison to our own parts."""
    for letter in seen.log.dead:
        yield f"{letter.topic} holds {letter.where} ({letter.reason})"


def groups_are_whole(seen: Evidence) -> Iterator[str]:
    """A trainer got each group exactly once, with each of its sessions."""
    times = Counter(group_id for group_id, _ in seen.groups)
    for group_id in sorted(seen.expected.keys() - times.keys()):
        yield f"group {group_id} never reached the trainer"
    for group_id, number in sorted(times.items()):
        if number > 1:
            yield f"group {group_id} reached the trainer {number} times"
        if group_id not in seen.expected:
            yield f"group {group_id} reached the trainer, and nobody submitted it"
    for group_id, sessions in seen.groups:
        if sorted(sessions) != sorted(seen.expected.get(group_id, sessions)):
            yield f"group {group_id} reached the trainer with the sessions {sorted(sessions)}"


def nothing_is_left(seen: Evidence) -> Iterator[str]:
    """After the stop no process, directory or socket of the fleet is left."""
    yield from seen.leftovers


def most_sessions_complete(seen: Evidence) -> Iterator[str]:
    """At least half of the sessions get through: a fleet that fails everything in good order isn't one that survives."""
    completed = sum(facts[0].status is Status.COMPLETED for facts in seen.log.ends.values())
    submitted = sum(len(sessions) for sessions in seen.expected.values())
    if 2 * completed < submitted:
        errors = Counter(facts[0].error for facts in seen.log.ends.values() if facts[0].status is not Status.COMPLETED)
        yield f"only {completed} of {submitted} sessions completed; most failed with: {errors.most_common(1)}"


def nobody_died_by_itself(seen: Evidence) -> Iterator[str]:
    """A part that wasn't hit may not end: trouble elsewhere is waited out."""
    yield from seen.deaths


Check = Callable[[Evidence], Iterable[str]]

CHECKS: Final[tuple[Check, ...]] = (
    every_session_ends_once,
    states_are_final,
    nothing_received_is_missing,
    no_reply_reaches_two_calls,
    counts_add_up,
    delivered_once,
    only_the_winner_contributes,
    deliveries_are_current,
    writers_are_sealed,
    capture_is_whole,
    dead_letters_are_empty,
    groups_are_whole,
    nothing_is_left,
    most_sessions_complete,
    nobody_died_by_itself,
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a storm's log says: the violations, in the order of the checks."""

    violations: tuple[Violation, ...] = field(default_factory=tuple)

    @property
    def is_clean(self) -> bool:
        """Whether everything holds."""
        return not self.violations


def judge(seen: Evidence, checks: Iterable[Check] = CHECKS) -> Verdict:
    """Run the checks."""
    return Verdict(tuple(Violation(check.__name__, text) for check in checks for text in check(seen)))


# What is still under way when the last session has ended, and settles by itself within a while.
SETTLING: Final[tuple[Check, ...]] = (
    every_session_ends_once,
    states_are_final,
    counts_add_up,
    deliveries_are_current,
    delivered_once,
    writers_are_sealed,
)


def _shown(numbers: Iterable[int]) -> str:
    ordered = sorted(numbers)
    return "none" if not ordered else f"{ordered[0]} … {ordered[-1]}, {len(ordered)} of them"
