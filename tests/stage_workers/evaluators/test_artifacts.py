"""What a grading keeps: stored as it comes, named in facts, read again later."""

from __future__ import annotations

import hashlib

import pytest

from bus import BlobStoreUnavailableError
from bus.memory import MemoryBlobStore
from stage_workers.evaluators import Artifacts, artifacts, references_in
from stage_workers.evaluators.artifacts import ArtifactMissingError


class DownStore(MemoryBlobStore):
    """A store that is away."""

    async def put(self, owner: str, data: bytes) -> str:
        raise BlobStoreUnavailableError("away")


async def test_kept_and_read_again(store: MemoryBlobStore) -> None:
    """A reference says where, what and until when; a later grading reads by name."""
    kept = Artifacts(store, "s1", kept_until=77)
    await kept.keep("patch.diff", b"the patch")
    (reference,) = references_in({"artifacts": kept.details}).values()
    assert (reference.sha256, reference.size_bytes, reference.kept_until, reference.is_cut) == (
        hashlib.sha256(b"the patch").hexdigest(),
        9,
        77,
        False,
    )
    later = Artifacts(store, "s1", earlier=references_in({"artifacts": kept.details}))
    assert await later.read("patch.diff") == b"the patch"
    await later.keep("patch.diff", b"another")
    assert await later.read("patch.diff") == b"another"
    with pytest.raises(ArtifactMissingError, match=r"no artifact 'log'; it has \['patch\.diff'\]"):
        await later.read("log")


async def test_a_long_one_is_cut(store: MemoryBlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first and last half stay, with how much is missing between them."""
    monkeypatch.setattr(artifacts, "LIMIT_BYTES", 10)
    kept = Artifacts(store, "s1")
    await kept.keep("log", b"aaaaa" + b"x" * 100 + b"zzzzz")
    assert await kept.read("log") == b"aaaaa\n[... 100 bytes left out ...]\nzzzzz"
    assert references_in({"artifacts": kept.details})["log"].is_cut


async def test_an_outage_costs_the_artifact_only() -> None:
    """The grade is worth more than its log."""
    kept = Artifacts(DownStore(), "s1")
    await kept.keep("log", b"x")
    assert kept.details == {}


async def test_without_a_store_nothing_is_kept(store: MemoryBlobStore) -> None:
    """Nor where one only reads."""
    for kept in (Artifacts(), Artifacts(store, "s1", reads_only=True)):
        await kept.keep("log", b"x")
        assert kept.details == {}
    assert store.blobs == {}


@pytest.mark.parametrize("details", [None, 3, {}, {"artifacts": []}, {"artifacts": {"a": {"url": "x"}, "b": 1}}])
def test_what_is_no_reference_is_none(details: object) -> None:
    """Facts of other releases don't stop a reader."""
    assert references_in(details) == {}
