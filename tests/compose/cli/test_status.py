"""`polynya status SESSION`: the sums of a session's calls."""

from __future__ import annotations

from bus.memory import MemoryBus
from compose.cli.status import sums, trajectories_of
from schemas.records import CaptureGap, Counts, Trajectory


async def test_the_newest_revision_of_each_lease(memory_bus: MemoryBus) -> None:
    """By attempt; other sessions of the partition aren't in it."""
    for lease, attempt, revision in (("b", 2, 1), ("a", 1, 1), ("a", 1, 2)):
        await memory_bus.publish(
            Trajectory(
                session_id="s", lease_id=lease, attempt=attempt, revision=revision, content_digest=f"{lease}{revision}"
            )
        )
    await memory_bus.publish(Trajectory(session_id="other", lease_id="c"))
    found = await trajectories_of(memory_bus, "s")
    assert [(t.lease_id, t.revision) for t in found] == [("a", 2), ("b", 1)]


def test_the_sum_adds_up_and_names_every_reason() -> None:
    """Calls = trained + context + each reason; holes and revisions are said."""
    counts = Counts(
        calls=6,
        trained=3,
        context=1,
        untrainable={"failed": 1, "undelivered": 1},
        traces=2,
        sampled_tokens=50,
        trainable_tokens=30,
    )
    gaps = [CaptureGap(writer=2, after_seq=4)]
    line = sums(Trajectory(attempt=2, counts=counts, revision=3, capture_incomplete=gaps))
    assert line == (
        "attempt 2: 6 calls = 3 trained + 1 context + 1 untrainable (failed) + 1 untrainable (undelivered); 2 traces, "
        "30 of 50 sampled tokens trained; revision 3; writer 2: nothing after call 4"
    )
