"""What `sink` reads: whole groups of the size that its figures are reckoned by."""

from __future__ import annotations

import pytest

from schemas.codec import decode
from schemas.records import ScoredTrajectory
from tests.bench.sink import GROUP_SIZE
from tests.bench.sink_records import OBSERVED, PROMPT, SAMPLED, TURNS, encoded, small, trajectory
from trainer_sink.groups import GroupAssembler, Source
from trainer_sink.sequences import sequences_of


@pytest.mark.parametrize(("make", "tokens"), [(trajectory, PROMPT + TURNS * (SAMPLED + OBSERVED)), (small, 16)])
def test_the_records_make_whole_groups(make, tokens) -> None:  # type: ignore[no-untyped-def]
    """Each session has its sequence, with all of its tokens and its age."""
    assembler = GroupAssembler("bench")
    for number, one in enumerate(encoded(make, 3 * GROUP_SIZE, GROUP_SIZE)):
        record = decode(one.value)
        assert isinstance(record, ScoredTrajectory)
        assert record == make(number, GROUP_SIZE)
        assert one.key == record.group_id.encode()
        assembler.add(record, Source(0, number))
    for _ in range(3):
        group = assembler.take()
        assert group is not None
        sequences = sequences_of(group)
        assert [s.length for s in sequences] == [tokens] * GROUP_SIZE
        assert all(s.versions == ("3",) for s in sequences)
    assert assembler.take() is None
