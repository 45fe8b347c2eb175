"""The projection of a policy's timeline: pure, event by event."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from schemas.records import PolicyEvent, PolicyEventType
from trainer_sink.policies.timeline import PolicyTimeline

CLAIMED, PAUSED, PUBLISHED = PolicyEventType.CLAIMED, PolicyEventType.PAUSED, PolicyEventType.PUBLISHED


def claim(trainer: str, nonce: str = "n", at: int = 0) -> PolicyEvent:
    """A trainer takes the policy over."""
    return PolicyEvent(policy_id="p", type=CLAIMED, trainer_id=trainer, reason=nonce, at=at)


def published(version: str, trainer: str, epoch: int, at: int = 0) -> PolicyEvent:
    """A trainer says that every engine has a version."""
    return PolicyEvent(policy_id="p", type=PUBLISHED, version=version, trainer_id=trainer, trainer_epoch=epoch, at=at)


def after(*events: tuple[int, PolicyEvent]) -> PolicyTimeline:
    """The timeline after these events, each with its offset."""
    timeline = PolicyTimeline("p")
    for offset, event in events:
        timeline.apply(event, offset)
    return timeline


def test_the_last_claim_by_offset_owns_the_policy() -> None:
    """Whatever the claimers' clocks say; a claim's offset is its epoch."""
    timeline = after((3, claim("a", at=900)), (7, claim("b", at=100)))
    assert timeline.owner is not None
    assert (timeline.owner.trainer_id, timeline.owner.epoch) == ("b", 7)
    assert [c.trainer_id for c in timeline.claims] == ["a", "b"]


def test_a_claim_that_arrives_twice_counts_where_it_stands_first() -> None:
    """A producer may send it again after another trainer's: that takes nothing back. The same trainer's next claim does."""
    twice = claim("a", nonce="first", at=1)
    timeline = after((1, twice), (2, claim("b")), (3, twice))
    assert timeline.owner is not None
    assert timeline.owner.trainer_id == "b"
    timeline.apply(replace(twice, reason="second"), 4)  # of the same millisecond, but another process
    assert (timeline.owner.trainer_id, timeline.owner.epoch) == ("a", 4)


def test_what_a_superseded_trainer_publishes_is_not_the_policys_version() -> None:
    """It stands in the list as invalid, and its number is used up all the same."""
    timeline = after(
        (1, claim("a")),
        (2, published("1", "a", 1)),
        (3, claim("b")),
        (4, published("2", "a", 1)),
        (5, published("3", "b", 3)),
    )
    assert [(v.version, v.is_valid) for v in timeline.versions] == [("1", True), ("2", False), ("3", True)]
    timeline = after((1, claim("a")), (2, published("1", "a", 1)), (3, claim("b")), (4, published("2", "a", 1)))
    assert timeline.published is not None
    assert timeline.published.version == "1"
    assert timeline.next_version == "3"


def test_a_broken_push_uses_its_number_up() -> None:
    """Engines may have it already; names that aren't numbers don't count."""
    timeline = after((1, claim("a")), (2, PolicyEvent(policy_id="p", type=PAUSED, version="4")))
    timeline.apply(published("step-9", "a", 1), 3)
    assert timeline.next_version == "5"
    assert PolicyTimeline("p").next_version == "1"


def test_a_version_that_is_published_twice_is_listed_once() -> None:
    """A writer that didn't hear of the first one's arrival says it again."""
    timeline = after((1, claim("a")), (2, published("1", "a", 1, at=5)), (3, published("1", "a", 1, at=6)))
    assert [(v.version, v.offset) for v in timeline.versions] == [("1", 2)]


def test_without_any_claim_a_version_is_valid() -> None:
    """A trainer that only dates its versions and pushes them by its own means needs no claim."""
    timeline = after((1, published("7", "mine", 0)))
    assert timeline.published is not None
    assert timeline.published.version == "7"


def test_other_policies_events_change_nothing() -> None:
    """They share a partition."""
    timeline = after((1, replace(claim("a"), policy_id="q")))
    assert timeline == PolicyTimeline("p")


def test_engines_come_and_go() -> None:
    """By URL; one that is added again takes on its new kind."""
    engine = PolicyEvent(policy_id="p", type=PolicyEventType.ENGINE_ADDED, engine_url="http://e:1", engine_kind="vllm")
    again = replace(engine, engine_kind="cpu", at=1)
    timeline = after((1, engine), (2, again))
    assert [(e.policy_id, e.url, e.kind) for e in timeline.engines.values()] == [("p", "http://e:1", "cpu")]
    timeline.apply(replace(again, type=PolicyEventType.ENGINE_REMOVED, at=2), 3)
    assert timeline.engines == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from([CLAIMED, PAUSED, PUBLISHED, PolicyEventType.RESUMED]),
            st.sampled_from(["a", "b"]),
            st.integers(0, 30),
            st.integers(0, 10),
        ),
        max_size=30,
    )
)
def test_no_version_is_given_twice(told: list[tuple[PolicyEventType, str, int, int]]) -> None:
    """Whatever trainers said in whatever order, the next number is above all of them, and the owner is the last new claim."""
    timeline = PolicyTimeline("p")
    for offset, (kind, trainer, version, epoch) in enumerate(told):
        event = PolicyEvent(
            policy_id="p", type=kind, trainer_id=trainer, version=str(version), trainer_epoch=epoch, at=offset
        )
        timeline.apply(event, offset)
    assert int(timeline.next_version) > max((v for _, _, v, _ in told), default=0)
    claims = [(trainer, offset) for offset, (kind, trainer, _, _) in enumerate(told) if kind is CLAIMED]
    assert (timeline.owner and (timeline.owner.trainer_id, timeline.owner.epoch)) == (claims[-1] if claims else None)
