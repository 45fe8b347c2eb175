"""How the ranks of one trainer share its groups: pure.

Usually rank 0 has the one consumer and deals its groups out (`deal`): a step then has one BatchConsumed and one checkpoint, and no rank
waits in a collective for a group that its own partitions don't have. Ranks that step on their own may each read a part of the partitions
instead (`partitions_of`, or `rank` and `world_size` of the consumer), each with a checkpoint of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer_sink.groups import Group


def partitions_of(rank: int, world_size: int, partition_count: int) -> tuple[int, ...]:
    """The partitions of one rank: every world_size-th. Raises ValueError for a rank that there isn't, or that would get none."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} isn't one of 0 … {world_size - 1}")
    if world_size > partition_count:
        raise ValueError(
            f"{world_size} ranks can't share {partition_count} partitions: let rank 0 read, and deal its groups out"
        )
    return tuple(range(rank, partition_count, world_size))


def deal(groups: Sequence[Group], world_size: int) -> list[list[Group]]:
    """Whole groups to ranks, as evenly by trained tokens as greed can: the largest first, each to the rank with the least.

    The same groups are dealt alike everywhere. A rank may get none when there are fewer groups than ranks.
    """
    if world_size < 1:
        raise ValueError(f"world_size must be 1 or more, not {world_size}")
    hands: list[list[Group]] = [[] for _ in range(world_size)]
    loads = [0] * world_size
    for group in sorted(groups, key=lambda g: (-trained_tokens(g), g.group_id)):
        rank = min(range(world_size), key=lambda r: (loads[r], len(hands[r]), r))
        hands[rank].append(group)
        loads[rank] += trained_tokens(group)
    return hands


def trained_tokens(group: Group) -> int:
    """How many tokens of a group have mask 1."""
    return sum(t.loss_mask.count(1) for s in group.scored for t in (s.trajectory.traces if s.trajectory else ()))
