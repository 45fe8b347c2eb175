"""A policy's timeline as a projection: who writes its weights, which versions came in which order, which engines serve it.

Pure: events in, in the order of the log, facts out. The last claim by offset wins and its offset is its epoch; what a trainer of
another epoch publishes isn't the policy's version, but its number is never given again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.records import PolicyEvent, PolicyEventType

FIRST_VERSION = 0
"""The weights that an engine starts with, before anybody has published; the first push is the next number."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A trainer took a policy's weights over; `epoch` is the claim's offset."""

    trainer_id: str
    epoch: int
    at: int = 0


@dataclass(frozen=True, slots=True)
class PublishedVersion:
    """A version that every engine of the policy had. `is_current_epoch` tells whether its writer owned the policy when it said so."""

    version: str
    parent_version: str
    weights_digest: str
    trainer_id: str
    epoch: int
    offset: int
    at: int
    is_valid: bool


@dataclass(frozen=True, slots=True)
class PolicyEngine:
    """An engine that serves the policy."""

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
    engines: dict[str, PolicyEngine] = field(default_factory=dict)
    _seen: set[tuple[object, ...]] = field(default_factory=set)
    _highest: int = FIRST_VERSION

    @property
    def owner(self) -> Claim | None:
        """Who may push now."""
        return self.claims[-1] if self.claims else None

    @property
    def published(self) -> PublishedVersion | None:
        """The newest version that an owner of its time published."""
        return next((version for version in reversed(self.versions) if version.is_valid), None)

    @property
    def next_version(self) -> str:
        """A number above every one that was ever named here, also by pushes that broke off."""
        return str(self._highest + 1)

    def apply(self, event: PolicyEvent, offset: int) -> None:
        """Takes the next event of this policy; other policies' and repeated ones change nothing."""
        if event.policy_id != self.policy_id or event.identity in self._seen:
            return
        self._seen.add(event.identity)
        if event.version.isdecimal():
            self._highest = max(self._highest, int(event.version))
        match event.type:
            case PolicyEventType.CLAIMED:
                self.claims.append(Claim(event.trainer_id, offset, event.at))
            case PolicyEventType.PUBLISHED:
                self.versions.append(self._published(event, offset))
            case PolicyEventType.ENGINE_ADDED:
                url = event.engine_url
                self.engines[url] = PolicyEngine(url, event.engine_kind, event.model, event.reason, event.at)
            case PolicyEventType.ENGINE_REMOVED:
                self.engines.pop(event.engine_url, None)
            case _:
                pass

    def _published(self, event: PolicyEvent, offset: int) -> PublishedVersion:
        owner = self.owner
        return PublishedVersion(
            version=event.version,
            parent_version=event.parent_version,
            weights_digest=event.weights_digest,
            trainer_id=event.trainer_id,
            epoch=event.trainer_epoch,
            offset=offset,
            at=event.at,
            is_valid=owner is None or (owner.trainer_id, owner.epoch) == (event.trainer_id, event.trainer_epoch),
        )
