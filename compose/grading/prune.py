"""Removing old blobs that nothing on the log refers to any more, and artifacts whose time is over."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from bus import Bus, Delivery
from bus.blobs import BlobEntry
from bus.claims import CLAIM_HEADER
from stage_workers.evaluators import references_in

BEARERS: Final = ("rollout.sessions", "reward.assigned")
"""Topics whose records name artifacts, each with the date until which it is kept."""

YOUNGEST_MS: Final = 3_600_000
"""A blob is stored before the record that refers to it: nothing younger is touched, whatever one asks for."""

# A reference is a text that ends in <owner>/<sha256>, in whatever form a record, a dead letter or a table's row has it.
_DIGEST = re.compile(rb"/([0-9a-f]{64})(?![0-9a-f])")


class Sweepable(Protocol):
    """What of a store this needs."""

    async def entries(self) -> list[BlobEntry]:
        """Every blob."""

    async def remove(self, key: str, *, unless_after: int) -> bool:
        """Removes one that wasn't put after that time."""


@dataclass(slots=True)
class References:
    """What the log refers to: blobs by their digest; of artifacts, the latest date (UTC epoch ms, 0: for ever)."""

    claims: set[str] = field(default_factory=set)
    artifacts: dict[str, int] = field(default_factory=dict)

    def holds(self, key: str, now_ms: int) -> bool:
        """Whether a blob has to stay."""
        digest = key.rpartition("/")[2]
        until = self.artifacts.get(digest)
        return digest in self.claims or (until is not None and (until == 0 or now_ms < until))

    def take(self, delivery: Delivery) -> None:
        """What one record refers to."""
        claim = delivery.headers.get(CLAIM_HEADER, b"")
        self.claims.update(found.decode() for found in _DIGEST.findall(claim))
        if delivery.topic not in BEARERS:
            self.claims.update(found.decode() for found in _DIGEST.findall(delivery.value))
            return
        try:
            details = getattr(delivery.decode(), "details", None)
        except Exception:  # noqa: BLE001  # record boundary: of one that can't be read, everything that it may mean stays
            self.claims.update(found.decode() for found in _DIGEST.findall(delivery.value))
            return
        for reference in references_in(details).values():
            known = self.artifacts.get(reference.sha256, reference.kept_until)
            self.artifacts[reference.sha256] = (
                0 if 0 in (known, reference.kept_until) else max(known, reference.kept_until)
            )


@dataclass(slots=True, kw_only=True)
class PruneReport:
    """What a sweep did, or would do."""

    blobs: int = 0
    kept: int = 0
    young: int = 0
    undated: int = 0
    removed: int = 0
    removed_bytes: int = 0

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


async def references(bus: Bus, topics: Iterable[str]) -> References:
    """Everything that the records of these topics refer to."""
    found = References()
    for topic in topics:
        async for delivery in bus.tail([topic], start="earliest", until_end=True, resolved=topic in BEARERS):
            found.take(delivery)
    return found


async def prune(
    bus: Bus,
    store: Sweepable,
    topics: Collection[str],
    *,
    older_than_s: float,
    is_dry: bool = False,
    now_ms: int | None = None,
) -> PruneReport:
    """Removes blobs that are older than that and that nothing refers to.

    Candidates are listed before the log is read, and looked at once more when they go: so one that is put again meanwhile stays.
    `topics` are all topics that may refer to blobs; a topic left out loses its blobs.
    """
    now = int(time.time() * 1000) if now_ms is None else now_ms
    limit = now - max(int(older_than_s * 1000), YOUNGEST_MS)
    report = PruneReport()
    candidates: list[BlobEntry] = []
    for entry in await store.entries():
        report.blobs += 1
        if entry.modified_at is None:
            report.undated += 1
        elif entry.modified_at > limit:
            report.young += 1
        else:
            candidates.append(entry)
    held = await references(bus, topics) if candidates else References()
    for entry in candidates:
        if held.holds(entry.key, now):
            report.kept += 1
        elif is_dry or await store.remove(entry.key, unless_after=limit):
            report.removed += 1
            report.removed_bytes += entry.size_bytes
    return report
