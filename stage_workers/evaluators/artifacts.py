"""What a grading keeps beside its rewards: the patch, logs, the tests' output. Blobs with a date until which they are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from bus import BlobStore, BlobStoreUnavailableError

log = structlog.get_logger(__name__)

LIMIT_BYTES = 16 * 1024 * 1024
"""Of one artifact. What is longer is kept as its first and last half, and says so."""


class ArtifactMissingError(Exception):
    """An artifact that isn't there (any more)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactReference:
    """Where an artifact is, as it stands in a fact's details. `kept_until` is in UTC epoch ms, 0: for ever."""

    url: str
    sha256: str
    size_bytes: int
    kept_until: int = 0
    is_cut: bool = False

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> ArtifactReference:
        """From a fact's details. Raises KeyError or TypeError for something else."""
        return cls(**{name: plain[name] for name in cls.__dataclass_fields__ if name in plain})


def references_in(details: object) -> dict[str, ArtifactReference]:
    """The artifacts that a fact's `details` name; what isn't readable as such is none."""
    found = details.get("artifacts") if isinstance(details, Mapping) else None
    references: dict[str, ArtifactReference] = {}
    for name, plain in found.items() if isinstance(found, Mapping) else ():
        try:
            references[str(name)] = ArtifactReference.of(plain)
        except (KeyError, TypeError):
            log.warning("artifact.unreadable", name=str(name))
    return references


class Artifacts:
    """The artifacts of one grading: new ones are kept, those of an earlier grading can be read."""

    def __init__(
        self,
        store: BlobStore | None = None,
        owner: str = "",
        *,
        kept_until: int = 0,
        earlier: Mapping[str, ArtifactReference] | None = None,
        reads_only: bool = False,
    ) -> None:
        """`owner` is the session whose blobs they are; without a store, or where one `reads_only`, nothing is kept."""
        self._store = store
        self._owner = owner
        self._kept_until = kept_until
        self._earlier = dict(earlier or {})
        self._reads_only = reads_only
        self._kept: dict[str, ArtifactReference] = {}

    async def keep(self, name: str, data: bytes) -> None:
        """Stores bytes under a name (`patch.diff`); an outage of the store costs the artifact, never the grade."""
        if self._store is None or self._reads_only:
            return
        is_cut = len(data) > LIMIT_BYTES
        if is_cut:
            half = LIMIT_BYTES // 2
            data = data[:half] + b"\n[... %d bytes left out ...]\n" % (len(data) - LIMIT_BYTES) + data[-half:]
        try:
            url = await self._store.put(self._owner, data)
        except BlobStoreUnavailableError as error:
            log.warning("artifact.lost", session_id=self._owner, name=name, size_bytes=len(data), error=str(error))
            return
        self._kept[name] = ArtifactReference(
            url=url,
            sha256=hashlib.sha256(data).hexdigest(),
            size_bytes=len(data),
            kept_until=self._kept_until,
            is_cut=is_cut,
        )

    async def read(self, name: str) -> bytes:
        """An artifact of this grading or of an earlier one.

        Raises:
            ArtifactMissingError: there is none of that name.
            bus.BlobMissingError: its time is over; bus.BlobStoreUnavailableError.
        """
        reference = self._kept.get(name) or self._earlier.get(name)
        if reference is None or self._store is None:
            raise ArtifactMissingError(
                f"the session has no artifact {name!r}; it has {sorted(self._earlier) or 'none'}"
            )
        return await self._store.get(reference.url)

    @property
    def details(self) -> dict[str, dict[str, Any]]:
        """What was kept, as it stands in a fact's details."""
        return {name: asdict(reference) for name, reference in self._kept.items()}
