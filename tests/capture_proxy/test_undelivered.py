"""Which lost answers are kept for a marked retry."""

from __future__ import annotations

from dataclasses import replace

from capture_proxy.call import Call
from capture_proxy.leases import LeaseState
from capture_proxy.repeats import Undelivered
from tests.capture_proxy.test_records import make


def lost() -> Call:
    """A call whose whole answer is on the log and didn't arrive."""
    call = make()
    call.lease.move(LeaseState.OPEN)
    call.lease.last_seq = call.call_seq
    call.is_durable = True
    return call


def test_a_lost_answer_is_given_once_and_to_its_own_request_alone() -> None:
    """Another body, another lease or a second asking gets none."""
    kept, call = Undelivered(), lost()
    kept.put(call)
    assert kept.take(call.lease, call.request, b"other") is None
    assert kept.take(call.lease, replace(call.request, stream=True), b"body") is None
    assert kept.take(lost().lease, replace(call.request, model="n"), b"body") is None
    assert kept.take(call.lease, call.request, b"body") is call
    assert kept.take(call.lease, call.request, b"body") is None


def test_nothing_is_kept_behind_the_seal() -> None:
    """A kept call holds its prompt and its session's whole lineage."""
    kept, first, second = Undelivered(), lost(), lost()
    second.lease.lease_id = "other"
    kept.put(first)
    first.lease.move(LeaseState.SEALING)
    kept.put(second)
    assert list(kept._calls.values()) == [second]
    late = lost()
    late.lease.move(LeaseState.SEALING)
    kept.put(late)
    assert list(kept._calls.values()) == [second]


def test_kept_answers_have_a_bound_in_bytes() -> None:
    """Large requests push out earlier ones; one above the bound isn't kept at all."""
    kept = Undelivered(max_bytes=1_000)
    calls = []
    for n, size in enumerate((400, 300, 500, 1_001)):
        call = lost()
        call.lease.lease_id = f"lease-{n}"
        call.stub = replace(call.stub, request_bytes=size)
        calls.append(call)
    weight = 4 * len(calls[0].prompt.ids)
    for call in calls[:3]:
        kept.put(call)
    assert list(kept._calls.values()) == calls[1:3]
    assert kept.size_bytes == 800 + 2 * weight
    kept.put(calls[3])
    assert (list(kept._calls.values()), kept.size_bytes) == ([], 0)
