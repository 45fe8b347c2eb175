"""The blob store and the claim check."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from bus.blobs import LocalBlobStore, RemoteBlobStore, blob_key, open_store
from bus.claims import CLAIM_HEADER, check_in, is_reference, resolve, resolve_value
from bus.deliveries import Delivery
from bus.errors import BlobCorruptError, BlobMissingError, BlobStoreUnavailableError
from bus.memory import MemoryBlobStore
from bus.settings import CLAIM_CHECK_BYTES
from schemas.codec import decode, encode
from schemas.records import BlobReference, Trajectory

DATA = b"some bytes" * 100


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """A missing blob is missing at once."""
    monkeypatch.setattr("bus.blobs._PATIENCE_S", ())


@pytest.fixture(params=["file", "fsspec", "s3", "memory"])
def store(request, tmp_path):
    """Each kind of store."""
    if request.param == "file":
        return open_store(tmp_path.as_uri())
    if request.param == "s3":
        request.getfixturevalue("s3_url")
        return open_store(f"s3://blobs/{tmp_path.name}")
    return open_store(f"memory://{tmp_path.name}") if request.param == "fsspec" else MemoryBlobStore()


async def test_what_is_put_is_got(store):
    """A blob's URL ends in the owner and the digest, and gives the bytes back."""
    url = await store.put("s-1", DATA)
    assert url.endswith(f"/s-1/{hashlib.sha256(DATA).hexdigest()}")
    assert await store.get(url) == DATA


async def test_putting_again_is_harmless(store):
    """The same bytes have the same place."""
    assert await store.put("s-1", DATA) == await store.put("s-1", DATA)


async def test_a_missing_blob_is_named(store):
    """A blob that isn't there is poison, with its URL in the message."""
    url = await store.put("s-1", DATA)
    other = url[:-64] + hashlib.sha256(b"other").hexdigest()
    with pytest.raises(BlobMissingError, match=hashlib.sha256(b"other").hexdigest()):
        await store.get(other)


async def test_changed_bytes_are_noticed(tmp_path):
    """Reading checks the digest."""
    store = LocalBlobStore(tmp_path)
    url = await store.put("s-1", DATA)
    (tmp_path / blob_key("s-1", DATA)).write_bytes(DATA[:-1])
    with pytest.raises(BlobCorruptError, match="sha256"):
        await store.get(url)


async def test_nothing_half_written_is_left(tmp_path):
    """Beside the blob no partial file stays behind."""
    await LocalBlobStore(tmp_path).put("s-1", DATA)
    assert [p.name for p in (tmp_path / "s-1").iterdir()] == [hashlib.sha256(DATA).hexdigest()]


@pytest.mark.parametrize("owner", ["../../etc", "a/b", "..", "", "ü x"])
async def test_an_owner_is_one_folder_whatever_it_is_called(tmp_path, owner):
    """A session id can't lead out of the store."""
    store = LocalBlobStore(tmp_path / "blobs")
    url = await store.put(owner, DATA)
    assert await store.get(url) == DATA
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert [p.parent.parent for p in files] == [tmp_path / "blobs"]


async def test_a_reference_cannot_point_elsewhere(tmp_path):
    """Only a URL's last two parts count: a record on the bus can't make a reader open another file."""
    store = LocalBlobStore(tmp_path / "blobs")
    with pytest.raises(BlobCorruptError, match="doesn't end in"):
        await store.get("file:///etc/passwd")
    outside = tmp_path / "s-1" / hashlib.sha256(DATA).hexdigest()
    outside.parent.mkdir()
    outside.write_bytes(DATA)
    with pytest.raises(BlobMissingError):
        await store.get(outside.as_uri())


async def test_a_store_that_fails_is_retriable(tmp_path):
    """A broken disk or a lost connection is no fault of the record."""
    (tmp_path / "blobs").write_text("a file where the folder should be")
    with pytest.raises(BlobStoreUnavailableError) as failed:
        await LocalBlobStore(tmp_path / "blobs").put("s-1", DATA)
    assert failed.value.is_retriable


async def test_blobs_of_an_object_store_are_listed_and_removed(s3_url, tmp_path):
    """What is in a bucket now counts, whatever was listed before: others put and remove, too."""
    del s3_url
    one, other = (open_store(f"s3://retention/{tmp_path.name}") for _ in range(2))
    assert await one.entries() == []
    url = await other.put("s-1", DATA)
    (entry,) = await one.entries()
    assert (entry.key, entry.size_bytes) == (blob_key("s-1", DATA), len(DATA))
    assert not await one.remove(entry.key, unless_after=0)
    assert await other.remove(entry.key, unless_after=1 << 60)
    assert await one.put("s-1", DATA) == url  # removed elsewhere, so it is written again
    assert await other.get(url) == DATA


async def test_an_object_store_that_is_away_is_retriable(s3_url, monkeypatch, unused_tcp_port):
    """Nobody listens there: no fault of the record, whatever words the client has for it."""
    del s3_url
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused_tcp_port}")
    store = open_store("s3://away/blobs")
    with pytest.raises(BlobStoreUnavailableError, match="s3://away/blobs") as failed:
        await store.put("s-1", DATA)
    assert failed.value.is_retriable


def test_a_url_needs_a_scheme():
    """A bare path isn't a URL, and the message shows one."""
    with pytest.raises(ValueError, match="file:///"):
        open_store("/var/blobs")
    assert isinstance(open_store("memory://x"), RemoteBlobStore)


def test_spaces_in_a_path_survive(tmp_path):
    """A file URL is quoted; the directory isn't."""
    store = open_store(Path(tmp_path / "with space").as_uri())
    assert isinstance(store, LocalBlobStore)
    assert store._root == tmp_path / "with space"


async def test_small_values_stay_on_the_log():
    """Below the limit nothing changes."""
    store = MemoryBlobStore()
    record = Trajectory(session_id="s-1")
    checked = await check_in(record, store)
    assert (checked.value, checked.topic, checked.key) == (encode(record).value, "trajectory.built", b"s-1")
    assert store.blobs == {}
    assert not is_reference(checked.value)


async def test_large_values_leave_a_reference_under_their_own_key():
    """Above the limit topic, key and identity stay, and the value is a reference to the framed bytes."""
    store = MemoryBlobStore()
    record = Trajectory(session_id="s-1", trajectory_id="x" * CLAIM_CHECK_BYTES)
    plain, checked = encode(record), await check_in(record, store)
    reference = decode(checked.value)
    assert isinstance(reference, BlobReference)
    assert (checked.topic, checked.key) == (plain.topic, plain.key)
    assert dict(checked.headers)["ce_id"] == dict(plain.headers)["ce_id"]
    assert dict(checked.headers)[CLAIM_HEADER].decode() == reference.url
    assert (reference.record_name, reference.size_bytes) == ("trajectory", len(plain.value))
    assert (reference.for_topic, reference.for_key, reference.for_event_id) == (
        "trajectory.built",
        "s-1",
        record.event_id,
    )
    assert list(store.blobs) == [reference.url]
    assert await resolve_value(checked.value, store) == plain.value


async def test_an_encoded_record_is_checked_in_like_the_record(tmp_path: Path) -> None:
    """Who has the bytes already needn't decode them: the same blob, the same reference."""
    store = open_store(tmp_path.as_uri())
    large = Trajectory(session_id="s-1", trajectory_id="x" * CLAIM_CHECK_BYTES)
    by_record, by_bytes = await check_in(large, store), await check_in(encode(large), store)
    assert by_bytes.value == by_record.value
    assert (by_bytes.topic, by_bytes.key) == (by_record.topic, by_record.key)
    assert dict(by_bytes.headers)[CLAIM_HEADER] == dict(by_record.headers)[CLAIM_HEADER]
    assert (await resolve_value(by_bytes.value, store)) == encode(large).value
    small = encode(Trajectory(session_id="s-1"))
    assert await check_in(small, store) is small


async def test_a_reference_that_contradicts_itself_is_corrupt():
    """The digest in the record and the one in the URL must be the same."""
    reference = BlobReference(url=f"mem://s-1/{'0' * 64}", sha256="1" * 64, for_topic="trajectory.built", for_key="s-1")
    with pytest.raises(BlobCorruptError, match="names another blob"):
        await resolve_value(encode(reference).value, MemoryBlobStore())


async def test_a_lost_blob_shows_when_the_delivery_is_decoded():
    """Resolving doesn't end a reader; decoding the one record raises."""
    store = MemoryBlobStore()
    checked = await check_in(Trajectory(session_id="s-1", trajectory_id="x" * CLAIM_CHECK_BYTES), store)
    store.blobs.clear()
    delivery = Delivery(
        topic="trajectory.built", partition=0, offset=0, timestamp_ms=0, key=b"s-1", value=checked.value
    )
    resolved = await resolve(delivery, store)
    assert resolved.value == checked.value
    with pytest.raises(BlobMissingError):
        resolved.decode()
