"""Assembling groups from scored trajectories: pure, one record in, at most one complete group out.

A group is complete when `group_size` distinct sessions are in; failed sessions count, since they arrive without
traces. Records repeat (delivery is at least once) and are revised, so each ends in exactly one of these counts:

`kept` + `revisions` + `duplicates` + `superseded` + `revisions_after_training` + `unreadable` + `foreign.<reason>`
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from schemas.records import ScoredTrajectory
from trainer_sink.filters import GroupFilter, SkipReason
from trainer_sink.group import Group, OpenGroup, Source, spec_of
from trainer_sink.memory import TRAINED, Finished, PartitionMemory
from trainer_sink.staleness import Staleness
from trainer_sink.versions import Versions

__all__ = ["Finished", "Group", "GroupAssembler", "Source"]


class GroupAssembler:
    """Fills groups, keeps what is open, and knows from which offset everything unfinished can be read again."""

    def __init__(
        self, trainer_id: str, group_filter: GroupFilter | None = None, versions: Versions | None = None
    ) -> None:
        self.versions = versions or Versions()
        self._trainer_id = trainer_id
        self._filter = group_filter or GroupFilter()
        self._open: dict[str, OpenGroup] = {}
        self._ready: dict[str, None] = {}
        self._partitions: dict[int, PartitionMemory] = {}
        self._skipped: dict[str, str] = {}
        self.counts: Counter[str] = Counter()
        self.side_calls: Counter[str] = Counter()
        """Traces of side calls in the groups that were handed out: `kept` or `dropped`."""

    # -- records in ------------------------------------------------------------------------------------------------

    def add(self, scored: ScoredTrajectory, source: Source) -> Group | None:
        """Take one record; the group that it completes, if it does. Raises PoisonError when it belongs to no group."""
        spec = spec_of(scored)
        where = self._at(source)
        outcome = where.repeat(scored.group_id, source.offset)
        if outcome is not None:
            self._count_after(scored, outcome)
            return None
        group = self._open.get(scored.group_id)
        reason = None if group and group.size else self._filter.refuses_spec(spec, self._trainer_id)
        if reason is not None:
            self.counts[f"foreign.{reason}"] += 1
            self._finish(scored.group_id, source, reason)
            return None
        if group is None:
            if scored.revision > 1:  # of a group that was finished long ago, or began before this sink's start
                self.counts["revisions_after_training"] += 1
                return None
            group = self._open[scored.group_id] = OpenGroup(scored.group_id, source, source)
        group.last = max(group.last, source)
        group.size = group.size or max(1, spec.group_size)
        if not self._put(group, scored, source):
            return None
        return self._completed(group)

    def add_unreadable(self, group_id: str, session_id: str, source: Source) -> None:
        """Take a record that couldn't be decoded; it stands for its session, so that its group still comes to an end."""
        where = self._at(source)
        self.counts["unreadable"] += 1
        if not group_id or not session_id or group_id in where.finished:
            return
        group = self._open.setdefault(group_id, OpenGroup(group_id, source, source))
        group.last = max(group.last, source)
        if session_id in group.revisions or group.is_yielded:
            return  # a revision that can't be read changes nothing
        group.unreadable.add(session_id)
        self._completed(group)

    def _at(self, source: Source) -> PartitionMemory:
        where = self._partitions.setdefault(source.partition, PartitionMemory(source.offset))
        where.read(source.offset)
        return where

    def _count_after(self, scored: ScoredTrajectory, outcome: str) -> None:
        if outcome != TRAINED:
            self.counts[f"foreign.{outcome}"] += 1
        else:
            self.counts["revisions_after_training" if scored.revision > 1 else "duplicates"] += 1

    def _put(self, group: OpenGroup, scored: ScoredTrajectory, source: Source) -> bool:
        """Whether the record brought a session that the group hadn't."""
        held = group.revisions.get(scored.session_id)
        if held is not None:
            if held == (scored.trajectory_id, scored.revision):
                self.counts["duplicates"] += 1
            elif scored.revision <= held[1]:
                self.counts["superseded"] += 1
            elif group.is_yielded:
                self.counts["revisions_after_training"] += 1
            else:
                self.counts["revisions"] += 1
                group.put(scored, source)
            return False
        if group.is_yielded or group.group_id in self._ready:  # one session more than the group's size
            self.counts["superseded"] += 1
            return False
        self.counts["kept"] += 1
        group.put(scored, source)
        group.unreadable.discard(scored.session_id)
        return True

    def _completed(self, group: OpenGroup) -> Group | None:
        if not group.has_all():
            return None
        closed = None if group.unreadable else group.close()
        reason = SkipReason.UNREADABLE if closed is None else self._refuses(closed)
        if reason is not None:
            self._finish(group.group_id, group.last, reason)
            return None
        self._ready[group.group_id] = None
        return closed

    def _refuses(self, group: Group) -> SkipReason | None:
        return self._filter.refuses_content(group.scored) or self._filter.refuses_group(group.scored)

    # -- groups out ------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> int:
        """Complete groups that wait to be taken."""
        return len(self._ready)

    @property
    def open(self) -> int:
        """Groups that wait for sessions."""
        return sum(1 for g in self._open.values() if not g.is_yielded) - len(self._ready)

    @property
    def yielded(self) -> tuple[str, ...]:
        """Groups that were taken and are neither committed nor skipped."""
        return tuple(g.group_id for g in self._open.values() if g.is_yielded)

    @property
    def skipped(self) -> dict[str, str]:
        """Skipped groups that were not yet reported, with their reasons."""
        return dict(self._skipped)

    def take(self) -> Group | None:
        """The group that has been complete for longest, with the revisions that came since; None when there is none.

        Those that are too old by now, or that a revision made unwanted, are skipped.
        """
        while self._ready:
            group_id = next(iter(self._ready))
            group = self._open[group_id]
            taken, side_calls = self._as_wished(group.close())
            reason = self._refuses(taken) or self._filter.refuses_age(taken.staleness)
            if reason is not None:
                self._finish(group_id, group.last, reason)
                continue
            del self._ready[group_id]
            # Re-inserted at the end, so that `yielded` is in the order in which the trainer got them.
            self._open[group_id] = self._open.pop(group_id)
            group.is_yielded, group.staleness = True, taken.staleness
            group.sessions.clear()
            if side_calls:
                self.side_calls["kept" if self._filter.side_calls == "keep" else "dropped"] += side_calls
            return taken
        return None

    def _as_wished(self, group: Group) -> tuple[Group, int]:
        """The group as the trainer gets it, and how many traces of side calls it had."""
        pairs = [self._filter.without_side_calls(scored) for scored in group.scored]
        scored = tuple(one for one, _ in pairs)
        staleness = self.versions.staleness(group.spec.policy_id, scored)
        return replace(group, scored=scored, staleness=staleness), sum(found for _, found in pairs)

    def staleness(self, group_ids: Iterable[str]) -> Staleness:
        """How old the trained tokens of these taken groups were when they were taken."""
        return Staleness.of_all(self._out(g).staleness for g in group_ids)

    def skip(self, group_id: str, reason: str) -> None:
        """Give up a taken group under the trainer's own reason; KeyError when it isn't out."""
        self._finish(group_id, self._out(group_id).last, reason)

    def trained(self, group_ids: Iterable[str]) -> None:
        """These taken groups are trained; KeyError when one isn't out."""
        for group in [self._out(g) for g in group_ids]:
            self._finish(group.group_id, group.last, TRAINED)

    def reported(self, group_ids: Iterable[str]) -> None:
        """These skips were published."""
        for group_id in group_ids:
            self._skipped.pop(group_id, None)

    def _out(self, group_id: str) -> OpenGroup:
        group = self._open.get(group_id)
        if group is None or not group.is_yielded:
            raise KeyError(f"group {group_id} is not out: it was never yielded, or is committed or skipped already")
        return group

    def _finish(self, group_id: str, last: Source, outcome: str) -> None:
        self._open.pop(group_id, None)
        self._ready.pop(group_id, None)
        where = self._partitions[last.partition]
        where.finished[group_id] = Finished(outcome, last.offset)
        if outcome != TRAINED:
            self._skipped[group_id] = outcome
        if where.is_full:
            where.forget(self.watermarks()[last.partition])
        if where.is_held_up:
            self._give_up_oldest(last.partition)

    def _give_up_oldest(self, partition: int) -> None:
        """Without this one group that never completes would hold the watermark, and the memory of all groups after it, for ever."""
        filling = [g for g in self._open.values() if g.first.partition == partition and not g.is_yielded]
        oldest = min((g for g in filling if g.group_id not in self._ready), key=lambda g: g.first, default=None)
        if oldest is not None:
            self._finish(oldest.group_id, oldest.last, SkipReason.INCOMPLETE)

    # -- position --------------------------------------------------------------------------------------------------

    def watermarks(self, *, without: Collection[str] = ()) -> dict[int, int]:
        """Per partition the offset from which everything unfinished can be read again; `without` counts as finished."""
        marks = {number: where.next_offset for number, where in self._partitions.items()}
        for group in self._open.values():
            if group.group_id not in without:
                marks[group.first.partition] = min(marks[group.first.partition], group.first.offset)
        return marks

    def finished(self, *, also: Iterable[str] = ()) -> dict[int, dict[str, Finished]]:
        """Per partition the finished groups that are remembered, oldest first; `also` are taken ones to count as trained."""
        found = {number: dict(where.finished) for number, where in self._partitions.items()}
        for group in [self._out(g) for g in also]:
            found[group.last.partition][group.group_id] = Finished(TRAINED, group.last.offset)
        return found

    def restore(
        self, watermarks: Mapping[int, int], finished: Mapping[int, Mapping[str, Finished]], skipped: Mapping[str, str]
    ) -> None:
        """Begin where a checkpoint ended; for a fresh assembler only."""
        self._skipped = dict(skipped)
        for number, offset in watermarks.items():
            self._partitions[number] = PartitionMemory(offset, dict(finished.get(number, {})))
