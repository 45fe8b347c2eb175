"""The claim check: a value too large for the log is stored as a blob, and a small reference travels in its place."""

from __future__ import annotations

from bus.blobs import BlobStore
from bus.deliveries import Delivery
from bus.errors import BlobCorruptError, BlobMissingError
from bus.settings import CLAIM_CHECK_BYTES
from schemas.codec import Encoded, MalformedRecordError, decode, encode, schema_id_of
from schemas.records import BlobReference, Record
from schemas.registry import UnknownSchemaIdError, find

CLAIM_HEADER = "claim_check"
"""Marks a record whose value is a reference, for readers that look at headers only; holds the blob's URL."""


async def check_in(record: Record | Encoded, store: BlobStore, *, limit_bytes: int = CLAIM_CHECK_BYTES) -> Encoded:
    """Encode a record (or take its encoding); above the limit its value is stored first and a `BlobReference` encoded in its place.

    Key and headers stay those of the record itself, so de-duplication and counting by headers see no difference.
    """
    encoded = record if isinstance(record, Encoded) else encode(record)
    if len(encoded.value) <= limit_bytes:
        return encoded
    told = dict(encoded.headers)
    url = await store.put((told.get("session_id") or encoded.key).decode(), encoded.value)
    reference = BlobReference(
        record_name=find(schema_id_of(encoded.value)).record,
        url=url,
        sha256=url.rpartition("/")[2],
        size_bytes=len(encoded.value),
        for_topic=encoded.topic,
        for_key=encoded.key.decode(),
        for_event_id=told["ce_id"].decode(),
    )
    headers = [*encoded.headers, (CLAIM_HEADER, url.encode())]
    return Encoded(encoded.topic, encoded.key, encode(reference).value, headers)


def is_reference(value: bytes) -> bool:
    """Whether a framed value is a claim check."""
    try:
        return find(schema_id_of(value)).record == BlobReference.NAME
    except (MalformedRecordError, UnknownSchemaIdError):
        return False


async def resolve_value(value: bytes, store: BlobStore) -> bytes:
    """The framed value itself: of a claim check the blob's bytes, of anything else what came in.

    Raises `BlobMissingError` or `BlobCorruptError` (poison), `BlobStoreUnavailableError` (retriable).
    """
    if not is_reference(value):
        return value
    reference = decode(value)
    assert isinstance(reference, BlobReference)
    if not reference.url.endswith(f"/{reference.sha256}"):
        raise BlobCorruptError(f"claim check for {reference.sha256} names another blob: {reference.url}")
    return await store.get(reference.url)


async def resolve(delivery: Delivery, store: BlobStore) -> Delivery:
    """The delivery with its real value; when the blob is lost or wrong, `decode` raises that. Raises only retriable errors."""
    if delivery.is_tombstone or not is_reference(delivery.value):
        return delivery
    try:
        return delivery.with_value(await resolve_value(delivery.value, store))
    except (BlobMissingError, BlobCorruptError, MalformedRecordError) as error:
        return delivery.with_problem(error)
