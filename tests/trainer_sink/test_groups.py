"""Assembling groups: complete, once, with everything else counted."""

from __future__ import annotations

import dataclasses
import gc
import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bus.errors import PoisonError
from schemas import ids
from schemas.records import ScoredTrajectory, Status, VersionSpan
from tests.trainer_sink.scored import POLICY, scored, trace, whole
from trainer_sink import memory
from trainer_sink.filters import GroupFilter
from trainer_sink.groups import Group, GroupAssembler, Source


def _feed(assembler: GroupAssembler, records: Iterable[ScoredTrajectory], first: int = 0) -> list[Group]:
    out = [assembler.add(r, Source(0, offset)) for offset, r in enumerate(records, start=first)]
    return [g for g in out if g is not None]


def test_a_group_completes_with_its_last_session_in_index_order() -> None:
    """Not before, and sorted by index, not by arrival; failed sessions count."""
    records = [scored("g", 2, 3), scored("g", 0, 3, status=Status.FAILED), scored("g", 1, 3)]
    assembler = GroupAssembler("me")
    assert _feed(assembler, records[:2]) == []
    assert assembler.open == 1
    (group,) = _feed(assembler, records[2:], first=2)
    assert [s.spec.index for s in group.scored if s.spec] == [0, 1, 2]
    assert group.sources == (Source(0, 1), Source(0, 2), Source(0, 0))
    assert (group.group_id, group.size) == (ids.group_id("g"), 3)
    assert assembler.take() == group
    assert assembler.take() is None


def test_a_repeated_record_completes_nothing() -> None:
    """Delivery is at least once: the same trajectory and revision counts as a duplicate."""
    assembler = GroupAssembler("me")
    one = scored("g", 0, 2)
    assert _feed(assembler, [one, one, one]) == []
    assert assembler.counts == {"kept": 1, "duplicates": 2}


def test_a_revision_before_the_yield_replaces() -> None:
    """Also one that comes after the group is complete, as long as nobody took it."""
    assembler = GroupAssembler("me")
    _feed(assembler, [scored("g", 0, 2), scored("g", 0, 2, revision=2, reward=0.5), scored("g", 1, 2)])
    _feed(assembler, [scored("g", 1, 2, revision=3, reward=0.25)], first=3)
    group = assembler.take()
    assert group is not None
    assert [(s.revision, s.reward) for s in group.scored] == [(2, 0.5), (3, 0.25)]
    assert assembler.counts == {"kept": 2, "revisions": 2}


def test_an_older_revision_changes_nothing() -> None:
    """A revision that arrives after a newer one is superseded."""
    assembler = GroupAssembler("me")
    _feed(assembler, [scored("g", 0, 2), scored("g", 0, 2, revision=3), scored("g", 0, 2, revision=2)])
    assert assembler.counts == {"kept": 1, "revisions": 1, "superseded": 1}


def test_a_revision_after_the_yield_is_counted() -> None:
    """The trainer has seen the group; the revision can't reach it any more, before or after the commit."""
    assembler = GroupAssembler("me")
    _feed(assembler, whole("g", 1))
    group = assembler.take()
    assert group is not None
    _feed(assembler, [scored("g", 0, 1, revision=2)], first=1)
    assembler.trained([group.group_id])
    _feed(assembler, [scored("g", 0, 1, revision=3), scored("g", 0, 1)], first=2)
    assert assembler.counts == {"kept": 1, "revisions_after_training": 2, "duplicates": 1}
    assert assembler.take() is None


def test_a_revision_of_a_group_from_before_the_start_opens_nothing() -> None:
    """Such a group could never complete here."""
    assembler = GroupAssembler("me")
    _feed(assembler, [scored("g", 0, 2, revision=2)])
    assert assembler.open == 0
    assert assembler.counts == {"revisions_after_training": 1}


def test_foreign_groups_are_skipped_once_with_their_reason() -> None:
    """Every record counts under the reason; the group is reported once."""
    assembler = GroupAssembler("me", GroupFilter.of(policy_id="mine"))
    _feed(assembler, whole("g", 3, spec={"policy_id": "theirs"}))
    assert assembler.skipped == {ids.group_id("g"): "policy"}
    assert assembler.counts == {"foreign.policy": 3}
    assembler.reported(assembler.skipped)
    assert assembler.skipped == {}


def test_a_group_with_unwanted_content_is_skipped_when_it_is_complete() -> None:
    """Off-context traces aren't yielded, also when a revision brings them while the group waits."""
    assembler = GroupAssembler("me")
    assert _feed(assembler, [scored("a", 0, 1, traces=[trace(is_off_context=True)])]) == []
    _feed(assembler, [scored("b", 0, 1), scored("b", 0, 1, revision=2, traces=[trace(is_off_context=True)])], first=1)
    assert assembler.take() is None
    assert assembler.skipped == {ids.group_id("a"): "off_context", ids.group_id("b"): "off_context"}


def test_a_record_without_its_spec_is_poison() -> None:
    """Without the group's size nobody could tell when it is complete."""
    assembler = GroupAssembler("me")
    with pytest.raises(PoisonError) as caught:
        assembler.add(dataclasses.replace(scored("g", 0, 1), spec=None), Source(0, 0))
    assert caught.value.reason == "spec_missing"


def test_an_unreadable_session_ends_its_group() -> None:
    """All sessions are in, one of them unreadable: the group is skipped under that reason instead of waiting for ever."""
    assembler = GroupAssembler("me")
    group_id = ids.group_id("g")
    assembler.add_unreadable(group_id, ids.session_id(group_id, 0), Source(0, 0))
    assert _feed(assembler, [scored("g", 1, 2)], first=1) == []
    assert assembler.skipped == {group_id: "unreadable"}
    assert assembler.watermarks() == {0: 2}


def test_a_readable_copy_heals_an_unreadable_one() -> None:
    """The joiner's repeat of a torn record makes the group whole."""
    assembler = GroupAssembler("me")
    group_id = ids.group_id("g")
    assembler.add_unreadable(group_id, ids.session_id(group_id, 0), Source(0, 0))
    assert len(_feed(assembler, whole("g", 2), first=1)) == 1
    assert assembler.skipped == {}


def test_an_unreadable_revision_changes_nothing() -> None:
    """The session is in; a torn revision of it is only counted."""
    assembler = GroupAssembler("me")
    _feed(assembler, [scored("g", 0, 2)])
    group_id = ids.group_id("g")
    assembler.add_unreadable(group_id, ids.session_id(group_id, 0), Source(0, 1))
    assert len(_feed(assembler, [scored("g", 1, 2)], first=2)) == 1


def test_an_unreadable_first_record_does_not_outwit_the_filter() -> None:
    """The group's first readable record decides whether it is wanted."""
    assembler = GroupAssembler("me", GroupFilter.of(policy_id="mine"))
    group_id = ids.group_id("g")
    assembler.add_unreadable(group_id, ids.session_id(group_id, 0), Source(0, 0))
    _feed(assembler, [scored("g", 1, 3, spec={"policy_id": "theirs"})], first=1)
    assert assembler.skipped == {group_id: "policy"}


def test_garbage_without_ids_holds_nothing_up() -> None:
    """Bytes of nobody's session are counted and passed."""
    assembler = GroupAssembler("me")
    assembler.add_unreadable("", "", Source(0, 0))
    assert assembler.watermarks() == {0: 1}
    assert assembler.counts == {"unreadable": 1}


def test_a_session_beyond_the_groups_size_is_superseded() -> None:
    """A group that is complete doesn't grow."""
    assembler = GroupAssembler("me")
    _feed(assembler, [scored("g", 0, 1), scored("g", 1, 1)])
    group = assembler.take()
    assert group is not None
    assert len(group.scored) == 1
    assert assembler.counts == {"kept": 1, "superseded": 1}


def test_the_watermark_stays_at_the_oldest_unfinished_group() -> None:
    """Open, waiting and yielded groups hold it; trained and skipped ones let it go."""
    assembler = GroupAssembler("me")
    _feed(assembler, [scored("a", 0, 1), scored("b", 0, 2), scored("c", 0, 1)])
    assert assembler.watermarks() == {0: 0}
    a, c = assembler.take(), assembler.take()
    assert a is not None
    assert c is not None
    assert assembler.watermarks(without=[a.group_id]) == {0: 1}
    assembler.trained([a.group_id])
    assert assembler.watermarks() == {0: 1}
    _feed(assembler, [scored("b", 1, 2)], first=3)
    b = assembler.take()
    assert b is not None
    assembler.skip(b.group_id, "stale")
    assert assembler.watermarks() == {0: 2}
    assert assembler.skipped == {b.group_id: "stale"}
    assembler.trained([c.group_id])
    assert assembler.watermarks() == {0: 4}


def test_only_what_is_out_can_be_finished() -> None:
    """Committing or skipping a group twice, or one never yielded, is refused by name."""
    assembler = GroupAssembler("me")
    _feed(assembler, whole("g", 1))
    with pytest.raises(KeyError, match="not out"):
        assembler.trained([ids.group_id("g")])
    group = assembler.take()
    assert group is not None
    assembler.trained([group.group_id])
    with pytest.raises(KeyError, match="committed or skipped already"):
        assembler.skip(group.group_id, "stale")


def test_finished_groups_are_forgotten_in_the_end_but_never_above_the_watermark(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Memory is bounded; what a restore would read again is kept whatever it takes."""
    monkeypatch.setattr(memory, "REMEMBERED_GROUPS", 3)
    assembler = GroupAssembler("me")
    for n in range(6):
        _feed(assembler, whole(f"g{n}", 1), first=n)
        group = assembler.take()
        assert group is not None
        assembler.trained([group.group_id])
    assert list(assembler.finished()[0]) == [ids.group_id(f"g{n}") for n in (3, 4, 5)]
    _feed(assembler, [scored("open", 0, 2)], first=6)
    for n in range(7, 13):
        _feed(assembler, whole(f"g{n}", 1), first=n)
        group = assembler.take()
        assert group is not None
        assembler.trained([group.group_id])
    assert list(assembler.finished()[0]) == [ids.group_id(f"g{n}") for n in range(7, 13)]


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 5), st.integers(1, 4))
def test_every_record_is_counted_once_and_every_group_yields_once(rng: random.Random, n_groups: int, size: int) -> None:
    """Shuffled, repeated, revised and foreign records: the counts add up, and each wanted group comes out once."""
    records = []
    for g in range(n_groups):
        policy = "mine" if g % 3 else "theirs"
        group = whole(f"g{g}", size, spec={"policy_id": policy})
        later = [dataclasses.replace(s, revision=2) for s in group if rng.random() < 0.3]
        records += rng.sample(group, size) + later + [s for s in group if rng.random() < 0.3]
    queues: dict[str, list[ScoredTrajectory]] = {}
    for r in records:
        queues.setdefault(r.group_id, []).append(r)
    assembler = GroupAssembler("me", GroupFilter.of(policy_id="mine"))
    taken, offset = [], 0
    while queues:  # an interleaving that keeps each group's own order, as one partition does
        key = rng.choice(sorted(queues))
        assembler.add(queues[key].pop(0), Source(0, offset))
        offset += 1
        if not queues[key]:
            del queues[key]
        if rng.random() < 0.3 and (group := assembler.take()) is not None:
            taken.append(group.group_id)
            if rng.random() < 0.5:
                assembler.trained(assembler.yielded)
    while (group := assembler.take()) is not None:
        taken.append(group.group_id)
    assert sorted(taken) == sorted(ids.group_id(f"g{g}") for g in range(n_groups) if g % 3)
    assert sum(assembler.counts.values()) == len(records)
    assert assembler.counts["foreign.policy"] == sum(1 for r in records if r.policy_id == "theirs")


def test_a_taken_group_is_not_held_twice() -> None:
    """A trainer that commits late, or never, keeps ids here, not trajectories; late records are still told apart."""
    assembler = GroupAssembler("me")
    for n in range(100):
        _feed(assembler, whole(f"g{n}", 2), first=2 * n)
        assert assembler.take() is not None
    held = [one for one in gc.get_objects() if type(one) is ScoredTrajectory and one.task_id == "g7"]
    assert held == []
    _feed(assembler, [scored("g7", 0, 2), scored("g7", 0, 2, revision=2)], first=200)
    assert assembler.counts == {"kept": 200, "duplicates": 1, "revisions_after_training": 1}
    assert len(assembler.yielded) == 100


def test_a_group_that_a_revision_makes_unwanted_is_skipped_when_it_would_be_taken() -> None:
    """The last session that was good is revised to another verdict while the group waits."""
    assembler = GroupAssembler("me", GroupFilter.of(require_variance=True))
    records = [scored("g", 0, 2, reward=1.0), scored("g", 1, 2, reward=0.0), scored("g", 1, 2, reward=1.0, revision=2)]
    _feed(assembler, records)
    assert assembler.ready == 1
    assert assembler.take() is None
    assert assembler.skipped == {ids.group_id("g"): "no_variance"}


def test_age_counts_when_a_group_is_taken() -> None:
    """Good when it was complete, too old once the weights have moved on; the next one is handed out with its age."""
    assembler = GroupAssembler("me", GroupFilter.of(max_policy_lag=1))
    order = assembler.versions.order(POLICY)
    order.add("1")
    _feed(assembler, [*_of_version("old", "1"), *_of_version("new", "2")])
    assert assembler.ready == 2
    for version in ("2", "3"):
        order.add(version)
    group = assembler.take()
    assert group is not None
    assert group.spec.task_id == "new"
    assert (group.staleness.max, group.staleness.current) == (1.0, "3")
    assert assembler.skipped == {ids.group_id("old"): "stale"}
    assert assembler.staleness([group.group_id]).tokens_by_lag == {1: 2}
    assert assembler.watermarks(without=[group.group_id]) == {0: 2}


def test_what_the_trainer_says_of_its_own_version_goes_before_the_timeline() -> None:
    """It knows first."""
    assembler = GroupAssembler("me", GroupFilter.of(max_policy_lag=3))
    assembler.versions.own = "9"
    _feed(assembler, [*_of_version("old", "5"), *_of_version("new", "6")])
    group = assembler.take()
    assert group is not None
    assert group.spec.task_id == "new"


def _of_version(name: str, version: str) -> list[ScoredTrajectory]:
    one = trace()
    turns = [dataclasses.replace(one.turns[0], version_spans=[VersionSpan(version=version, start=0, end=2)])]
    return whole(name, 1, traces=[dataclasses.replace(one, turns=turns)])


def test_side_calls_are_counted_whether_they_are_kept_or_dropped() -> None:
    """Where a harness asks for a title, the trainer sees how many traces that were."""
    for wish, counted in (("keep", "kept"), ("drop", "dropped")):
        assembler = GroupAssembler("me", GroupFilter.of(side_calls=wish))
        _feed(assembler, whole("g", 2, traces=[trace(0), trace(1, branch="aux")]))
        group = assembler.take()
        assert group is not None
        assert [len(s.trajectory.traces) for s in group.scored if s.trajectory] == [1 + (wish == "keep")] * 2
        assert assembler.side_calls == {counted: 2}


def test_a_group_that_never_completes_is_given_up_once_enough_others_have_overtaken_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It began before the sink's start: else it would hold the watermark, and every later group's name, for ever."""
    monkeypatch.setattr(memory, "REMEMBERED_GROUPS", 3)
    monkeypatch.setattr(memory, "OVERTAKEN_GROUPS", 2)
    assembler = GroupAssembler("me")
    _feed(assembler, [scored("torso", 1, 2)])
    for n in range(1, 40):
        _feed(assembler, whole(f"g{n}", 1), first=n)
        group = assembler.take()
        assert group is not None
        assembler.trained([group.group_id])
        assert len(assembler.finished()[0]) <= 6
    assert assembler.skipped == {ids.group_id("torso"): "incomplete"}
    assert assembler.watermarks() == {0: 40}
