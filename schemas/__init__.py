"""What travels between the parts: records, their Avro schemas, the topic catalogue, the wire codec, token arrays.

In: plain Python values. Out: framed bytes and back. Pure: no I/O but reading our own schema files, no Kafka client.
"""

from __future__ import annotations

from schemas import arrays, ids, records, topics
from schemas.codec import Encoded, MalformedRecordError, decode, encode
from schemas.registry import UnknownSchemaIdError

__all__ = [
    "Encoded",
    "MalformedRecordError",
    "UnknownSchemaIdError",
    "arrays",
    "decode",
    "encode",
    "ids",
    "records",
    "topics",
]
