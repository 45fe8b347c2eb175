"""A policy's timeline as a projection: who writes its weights, which versions came in which order, which engines serve it.

Pure: events in, in the order of the log, facts out. The last claim by offset wins and its offset is its epoch; what a trainer of
another epoch publishes isn't the policy's version, but its number is never given again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from schemas.records import PolicyEvent, PolicyEventType
from trainer_sink.staleness import number_of

FIRST_VERSION: Final = 0
"""What an engine serves before anybody has pushed; the first push is the next number."""

ANY_POLICY: Final = "*"
"""Engines of this name serve every policy that has none of its own."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A trainer took a policy's weights over; `epoch` is the claim's offset, `nonce` tells apart claims of one name."""

    trainer_id: str
    epoch: int
    at: int = 0
    nonce: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedVersion:
    """A version of which somebody said that every engine of the policy has it.

    `is_valid` tells whether that was the policy's owner at that moment. Times are UTC epoch ms.
    """

    version: str
    parent_version: str = ""
    weights_digest: str = ""
    weights_path: str = ""
    trainer_id: str = ""
    epoch: int = 0
    offset: int = 0
    at: int = 0
    is_valid: bool = True


@dataclass(frozen=True, slots=True)
class RegisteredEngine:
    """An engine that serves a policy, and who has added it."""

    policy_id: str
    url: str
    kind: str
    model: str = ""
    added_by: str = ""
    at: int = 0


@dataclass(slots=True)
class PolicyTimeline:
    """What one policy's events say, up to the last one that was applied."""

    policy_id: str
    claims: list[Claim] = field(default_factory=list)
    versions: list[PublishedVersion] = field(default_factory=list)
    engines: dict[str, RegisteredEngine] = field(default_factory=dict)
    _seen: set[tuple[object, ...]] = field(default_factory=set)
    _highest: int = FIRST_VERSION

    @property
    def owner(self) -> Claim | None:
        """Who may push now."""
        return self.claims[-1] if self.claims else None

    @property
    def published(self) -> PublishedVersion | None:
        """The newest version that the owner of its time published."""
        return next((one for one in reversed(self.versions) if one.is_valid), None)

    @property
    def next_version(self) -> str:
        """A number above every one that was ever named here, also by pushes that broke off or came too late."""
        return str(self._highest + 1)

    def apply(self, event: PolicyEvent, offset: int) -> None:
        """Takes the next event of this policy; other policies' events and repeated ones change nothing."""
        # Two processes of one name may claim within one millisecond: the nonce in `reason` tells them apart.
        key = (*event.identity, event.reason) if event.type is PolicyEventType.CLAIMED else event.identity
        if event.policy_id != self.policy_id or key in self._seen:
            return
        self._seen.add(key)
        self._highest = max(self._highest, number_of(event.version) or FIRST_VERSION)
        match event.type:
            case PolicyEventType.CLAIMED:
                self.claims.append(Claim(event.trainer_id, offset, event.at, event.reason))
            case PolicyEventType.PUBLISHED:
                self._publish(event, offset)
            case PolicyEventType.ENGINE_ADDED:
                url = event.engine_url
                engine = RegisteredEngine(self.policy_id, url, event.engine_kind, event.model, event.reason, event.at)
                self.engines[url] = engine
            case PolicyEventType.ENGINE_REMOVED:
                self.engines.pop(event.engine_url, None)
            case _:
                pass

    def _publish(self, event: PolicyEvent, offset: int) -> None:
        if any((one.version, one.epoch) == (event.version, event.trainer_epoch) for one in self.versions):
            return  # said again, by a writer that didn't hear of the first one's arrival
        owner = self.owner
        is_valid = owner is None or (owner.trainer_id, owner.epoch) == (event.trainer_id, event.trainer_epoch)
        self.versions.append(
            PublishedVersion(
                version=event.version,
                parent_version=event.parent_version,
                weights_digest=event.weights_digest,
                weights_path=event.weights_path,
                trainer_id=event.trainer_id,
                epoch=event.trainer_epoch,
                offset=offset,
                at=event.at,
                is_valid=is_valid,
            )
        )
