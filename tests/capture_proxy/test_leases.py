"""Leases: one table of legal moves, contiguous numbers, and a drain that waits for everything."""

from __future__ import annotations

import asyncio
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capture_proxy import leases
from capture_proxy.leases import LEGAL_MOVES, Denial, Lease, LeaseBook, LeaseRefusalError, LeaseState
from schemas.records import SessionSpec


def make(lease_id: str = "l1", writer: int = 1, secret_hash: str = "h1", **changes: object) -> Lease:
    base = {"session_id": "s1", "attempt": 1, "spec": SessionSpec()}
    return Lease(**{**base, "lease_id": lease_id, "writer": writer, "secret_hash": secret_hash, **changes})  # type: ignore[arg-type]


def opened(book: LeaseBook, *args: object, **changes: object) -> Lease:
    lease = book.open(make(*args, **changes))  # type: ignore[arg-type]
    lease.move(LeaseState.OPEN)
    return lease


@pytest.mark.parametrize(("before", "after"), list(product(LeaseState, LeaseState)))
def test_every_move_is_legal_or_refused(before: LeaseState, after: LeaseState) -> None:
    """Each cell of the table: a legal move is made, any other raises and changes nothing."""
    lease = make()
    lease.state = before
    if after in LEGAL_MOVES[before]:
        lease.move(after)
        assert lease.state is after
        assert lease.sealed.is_set() == (after is LeaseState.SEALED)
    else:
        with pytest.raises(RuntimeError, match="can't go"):
            lease.move(after)
        assert lease.state is before


@pytest.mark.parametrize("state", [s for s in LeaseState if s is not LeaseState.OPEN])
def test_only_an_open_lease_takes_calls(state: LeaseState) -> None:
    """No number is given before the opening or after the seal began."""
    lease = make()
    lease.state = state
    with pytest.raises(RuntimeError):
        lease.next_call()
    assert lease.last_seq == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), min_size=1, max_size=25),
    st.integers(0, 25),
)
def test_numbers_are_contiguous_whatever_runs_at_once(calls: list[tuple[int, int, bool]], seal_after: int) -> None:
    """Concurrent calls that end in any order, with a seal in between: numbers are 1 … last_seq, and the drain waits for all."""

    async def run() -> None:
        lease = make()
        lease.move(LeaseState.OPEN)
        given_numbers: list[int] = []
        refused = 0

        async def one(turns: int, more: int, is_delivered_first: bool) -> None:
            nonlocal refused
            for _ in range(turns):
                await asyncio.sleep(0)
            try:
                seq = lease.next_call()
            except RuntimeError:
                refused += 1
                return
            given_numbers.append(seq)
            first, second = lease.recorded, lease.delivered
            if is_delivered_first:
                first, second = second, first  # type: ignore[assignment]
            for _ in range(more):
                await asyncio.sleep(0)
            first(seq)
            await asyncio.sleep(0)
            second(seq)

        running = [asyncio.create_task(one(*c)) for c in calls]
        for _ in range(seal_after):
            await asyncio.sleep(0)
        lease.move(LeaseState.SEALING)
        last = lease.last_seq
        await asyncio.wait_for(lease.drained(), 5.0)
        assert lease.last_seq == last
        assert sorted(given_numbers) == list(range(1, last + 1))
        assert not lease.unrecorded
        assert not lease.undelivered
        await asyncio.gather(*running)
        assert refused == len(calls) - last

    asyncio.run(run())


def test_a_number_whose_start_couldnt_be_written_is_taken_back() -> None:
    """Only the newest can be, so that no gap comes about."""
    lease = make()
    lease.move(LeaseState.OPEN)
    first = lease.next_call()
    second = lease.next_call()
    with pytest.raises(RuntimeError, match="isn't the newest"):
        lease.undo_call(first)
    lease.undo_call(second)
    assert (lease.last_seq, lease.unrecorded) == (1, {1})
    assert lease.next_call() == 2


def test_a_delivery_is_told_once() -> None:
    """The second hook that sees the end of a call says nothing."""
    lease = make()
    lease.move(LeaseState.OPEN)
    seq = lease.next_call()
    assert lease.delivered(seq)
    assert not lease.delivered(seq)


def test_secrets_open_their_own_lease_only() -> None:
    """Unknown, opening, open, sealing, sealed and ended each say what they are."""
    book = LeaseBook()
    assert book.authorise("h1") == Denial("unknown_secret")
    lease = book.open(make())
    assert book.authorise("h1") == Denial("not_open_yet", "s1")
    lease.move(LeaseState.OPEN)
    assert book.authorise("h1") is lease
    lease.move(LeaseState.SEALING)
    assert book.authorise("h1") == Denial("sealed", "s1")
    book.sealed(lease)
    lease.move(LeaseState.SEALED)
    assert book.authorise("h1") == Denial("sealed", "s1")
    book.ended("l1", "over")
    assert book.authorise("h1") == Denial("lease_ended", "s1")
    assert book.active() == []


def test_an_ended_lease_cant_be_opened() -> None:
    """What `rollout.state` revoked stays revoked, also for a writer that comes late."""
    book = LeaseBook()
    book.ended("l1", "session is ended")
    with pytest.raises(LeaseRefusalError, match="has ended"):
        book.open(make())


def test_the_next_writer_may_use_the_secret_of_a_sealed_one() -> None:
    """One secret per lease: writer 2 takes it over from the sealed writer 1, and keeps it when that one is forgotten."""
    book = LeaseBook()
    first = opened(book)
    with pytest.raises(LeaseRefusalError, match="already belongs"):
        book.open(make(writer=2))
    first.move(LeaseState.SEALING)
    book.sealed(first)
    first.move(LeaseState.SEALED)
    second = opened(book, writer=2)
    assert book.authorise("h1") is second


def test_old_seals_are_forgotten_and_take_nothing_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded; forgetting an old writer leaves the newer one's secret alone."""
    monkeypatch.setattr(leases, "_REMEMBERED", 1)
    book = LeaseBook()
    first = opened(book)
    first.move(LeaseState.SEALING)
    book.sealed(first)
    second = opened(book, writer=2)
    other = opened(book, "l2", secret_hash="h2", session_id="s2")
    other.move(LeaseState.SEALING)
    book.sealed(other)
    assert book.find("l1", 1) is None
    assert book.authorise("h1") is second
    assert book.of_session("s1") == [second]


def test_a_dropped_opening_leaves_no_trace() -> None:
    """An opening that couldn't be recorded can be tried again from the start."""
    book = LeaseBook()
    lease = book.open(make())
    book.drop(lease)
    assert book.authorise("h1") == Denial("unknown_secret")
    assert book.open(make()) is not lease
