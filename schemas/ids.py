"""Deterministic ids: the same fact gets the same id, whoever publishes it and however often.

Every id is a uuid5, so a re-processed record, a restarted process or a second reader derives the same one and
consumers can drop repeats.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import Final

# The root of all our ids; fixed for ever, since changing it would change every id.
NAMESPACE: Final = uuid.UUID("6b1f3f0e-52a5-5d0c-9a3b-0f5b0c6c7a11")


def derive(kind: str, *parts: object) -> str:
    """The uuid5 of a kind and its identifying parts (joined by an unprintable separator)."""
    name = "\x1f".join((kind, *map(str, parts))).encode("utf-8", "surrogatepass")
    # uuid.uuid5 itself takes no bytes before Python 3.12, and no text with a lone surrogate.
    return str(uuid.UUID(bytes=hashlib.sha1(NAMESPACE.bytes + name, usedforsecurity=False).digest()[:16], version=5))


def group_id(task_id: str) -> str:
    """The group of a task's first generation."""
    return derive("group", task_id)


def requeue_group_id(requeue_of: str, for_trainer: str) -> str:
    """The group that re-runs `requeue_of` for one trainer."""
    return derive("requeue", requeue_of, for_trainer)


def session_id(group: str, index: int) -> str:
    """The session at position `index` (from 0) of a group."""
    return derive("session", group, index)


def lease_id(session: str, attempt: int) -> str:
    """The one lease that attempt `attempt` (from 1) of a session can be granted."""
    return derive("lease", session, attempt)


def completion_id(lease: str, writer: int, call_seq: int) -> str:
    """The id of call `call_seq` (from 1) of writer `writer` (from 1) under a lease."""
    return derive("completion", lease, writer, call_seq)


def trajectory_id(session: str, lease: str, builder: str, options_json: str = "{}") -> str:
    """The id of a session's trajectory under one lease ('' for none) and one builder; known before it exists."""
    return derive("trajectory", session, lease, builder, options_json)


def secret_hash(secret: str) -> str:
    """SHA-256 (hex) of a lease's secret: the only form of it that leaves its worker."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def digest(data: bytes) -> str:
    """SHA-256 (hex) of some bytes: request digests, content digests, blob names."""
    return hashlib.sha256(data).hexdigest()
