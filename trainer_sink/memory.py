"""What a sink remembers of a partition: how far it was read, and how the groups ended that may still be repeated. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

# Finished groups of a partition that are remembered below its watermark, to recognise late repeats. A repeat comes
# from a restarted joiner, seconds to minutes later; 2,000 groups cost a checkpoint 0.12 MB a partition.
REMEMBERED_GROUPS: Final = 2_000

# An open group that so many groups of its partition have overtaken will never be whole: it began before this sink's start, or
# retention took a part of it. Those that run are as many as a trainer's lag allows, so none of them is overtaken like that.
OVERTAKEN_GROUPS: Final = 10_000

TRAINED: Final = "trained"


@dataclass(frozen=True, slots=True)
class Finished:
    """How a group ended: TRAINED or the reason of its skip, and the offset of its last record so far."""

    outcome: str
    last_offset: int


@dataclass(slots=True)
class PartitionMemory:
    """One partition."""

    next_offset: int
    """The first one that wasn't read."""
    finished: dict[str, Finished] = field(default_factory=dict)
    """By group, oldest first."""

    def read(self, offset: int) -> None:
        """A record was read; offsets may come again."""
        self.next_offset = max(offset + 1, self.next_offset)

    def repeat(self, group_id: str, offset: int) -> str | None:
        """How the group of a record ended, which is its last record now; None when it isn't finished, or forgotten."""
        done = self.finished.get(group_id)
        if done is None:
            return None
        self.finished[group_id] = Finished(done.outcome, max(done.last_offset, offset))
        return done.outcome

    @property
    def is_full(self) -> bool:
        """Whether there is something to forget."""
        return len(self.finished) > REMEMBERED_GROUPS

    @property
    def is_held_up(self) -> bool:
        """Whether nothing could be forgotten for so long that the group at the watermark will never be whole."""
        return len(self.finished) > REMEMBERED_GROUPS + OVERTAKEN_GROUPS

    def forget(self, watermark: int) -> None:
        """Drop the oldest finished groups, but none whose records would be read again after a restore."""
        while self.is_full:
            oldest = next(iter(self.finished))
            if self.finished[oldest].last_offset >= watermark:
                return
            del self.finished[oldest]
