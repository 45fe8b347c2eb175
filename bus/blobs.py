"""Large values outside the log: content-addressed blobs on any fsspec file system, checked whenever they're read."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote, urlsplit

import fsspec

from bus.errors import BlobCorruptError, BlobMissingError, BlobStoreUnavailableError

_TIMEOUT_S: Final = 60.0
"""For one read or write of some megabytes."""

_PATIENCE_S: Final = (0.1, 0.5, 1.5)
"""A blob is written before its record; a shared file system may still show it a moment later on another machine."""

_LISTING: Final = ("s3://", "s3a://")
"""Stores whose client remembers what it listed."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


_RENEWED_AFTER_S: Final = 3600.0
"""A blob that is put again is as young as a new one, give or take so long: who removes old ones must not meet it."""


@dataclass(frozen=True, slots=True)
class BlobEntry:
    """One stored blob. `modified_at` is in UTC epoch ms, None where the file system doesn't tell."""

    key: str
    size_bytes: int
    modified_at: int | None


class BlobStore(Protocol):
    """Where blobs are kept. A blob's key is `<owner>/<sha256>`; the owner is the session that it belongs to."""

    async def put(self, owner: str, data: bytes) -> str:
        """Store `data` durably and return its URL; storing the same again is harmless. Raises `BlobStoreUnavailableError`."""
        ...

    async def get(self, url: str) -> bytes:
        """The bytes of a blob, verified. Raises `BlobMissingError`, `BlobCorruptError` or `BlobStoreUnavailableError`."""
        ...


def open_store(url: str) -> LocalBlobStore | RemoteBlobStore:
    """The store behind a URL: `file://` with fsync and atomic rename, anything else through fsspec."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return LocalBlobStore(Path(unquote(parts.path)))
    if not parts.scheme:
        raise ValueError(f"blob_url {url!r} has no scheme: write file:///absolute/path, s3://bucket/path, or the like")
    return RemoteBlobStore(url)


def blob_key(owner: str, data: bytes) -> str:
    """The key under which `data` is stored; unsafe characters of the owner are escaped, so it stays one folder."""
    safe = quote(owner, safe="") or "_"
    return f"{safe.replace('.', '%2E') if set(safe) == {'.'} else safe}/{hashlib.sha256(data).hexdigest()}"


def _key_of(url: str) -> str:
    """The key in a blob's URL. Only the key is trusted: where blobs lie is each reader's own setting, never the record's."""
    owner, _, digest = url.rpartition("/")
    owner = owner.rpartition("/")[2]
    if not owner or set(owner) == {"."} or not _SHA256.fullmatch(digest):
        raise BlobCorruptError(f"claim check names {url!r}, which doesn't end in <session>/<sha256>")
    return f"{owner}/{digest}"


def _verified(data: bytes, key: str, where: str) -> bytes:
    found = hashlib.sha256(data).hexdigest()
    if found != key.rpartition("/")[2]:
        raise BlobCorruptError(
            f"blob {where} holds {len(data)} bytes with sha256 {found}, not the ones it is named after"
        )
    return data


class _Base(ABC):
    """Deadlines, threads and patience; subclasses say how bytes are read and written."""

    async def put(self, owner: str, data: bytes) -> str:
        """See `BlobStore.put`."""
        key = await asyncio.to_thread(blob_key, owner, data)  # a digest of megabytes
        url: str = await self._away(self._write, key, data)
        return url

    async def get(self, url: str) -> bytes:
        """See `BlobStore.get`."""
        key = _key_of(url)
        for pause_s in (*_PATIENCE_S, None):
            try:
                data: bytes = await self._away(self._read_verified, key)
            except FileNotFoundError as error:
                if pause_s is None:
                    raise BlobMissingError(f"blob {self._url(key)} isn't there (the claim check says {url})") from error
                await asyncio.sleep(pause_s)
            else:
                return data
        raise AssertionError("unreachable: the last round returns or raises")

    async def entries(self) -> list[BlobEntry]:
        """Every blob that is stored. Raises `BlobStoreUnavailableError`."""
        found: list[BlobEntry] = await self._away(self._entries)
        return found

    async def remove(self, key: str, *, unless_after: int) -> bool:
        """Remove a blob, unless it was put (again) after that time (UTC epoch ms); whether it went.

        Raises `BlobStoreUnavailableError`.
        """
        try:
            done: bool = await self._away(self._remove, key, unless_after)
        except FileNotFoundError:
            return False
        return done

    async def _away(self, function: Any, *arguments: Any) -> Any:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await asyncio.to_thread(function, *arguments)
        except (FileNotFoundError, BlobCorruptError):
            raise
        except Exception as error:  # the store's boundary: each kind of file system fails in its own words
            raise BlobStoreUnavailableError(f"blob store {self._url('')}: {error!r}") from error

    def _read_verified(self, key: str) -> bytes:
        return _verified(self._read(key), key, self._url(key))

    @abstractmethod
    def _write(self, key: str, data: bytes) -> str:
        """Write a blob, whole or not at all, and return its URL; may block."""

    @abstractmethod
    def _read(self, key: str) -> bytes:
        """A blob's bytes; may block. Raises FileNotFoundError."""

    @abstractmethod
    def _entries(self) -> list[BlobEntry]:
        """All blobs; may block."""

    @abstractmethod
    def _remove(self, key: str, unless_after: int) -> bool:
        """Remove a blob that isn't younger than that; may block. Raises FileNotFoundError."""

    @abstractmethod
    def _url(self, key: str) -> str:
        """The URL of a key."""


class LocalBlobStore(_Base):
    """Blobs in a directory: on disk (fsync of file and folder) before `put` returns, and whole or absent at any crash."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def _url(self, key: str) -> str:
        return f"{self._root.absolute().as_uri()}/{key}"

    def _read(self, key: str) -> bytes:
        return (self._root / key).read_bytes()

    def _write(self, key: str, data: bytes) -> str:
        path = self._root / key
        try:
            os.utime(path)  # what has its name has its content, durably: the rename came last
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
            try:
                with partial.open("wb") as handle:
                    handle.write(data)
                    handle.flush()
                    os.fsync(handle.fileno())
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
            for folder in (path.parent, self._root):
                _fsync_folder(folder)
        return self._url(key)

    def _entries(self) -> list[BlobEntry]:
        found = []
        for path in self._root.glob("*/*"):
            if _SHA256.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):
                    told = path.stat()
                    key = f"{path.parent.name}/{path.name}"
                    found.append(BlobEntry(key, told.st_size, told.st_mtime_ns // 1_000_000))
        return found

    def _remove(self, key: str, unless_after: int) -> bool:
        path = self._root / key
        if path.stat().st_mtime_ns // 1_000_000 > unless_after:
            return False
        path.unlink()
        with contextlib.suppress(OSError):  # its folder goes with the last one
            path.parent.rmdir()
        return True


def _fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class RemoteBlobStore(_Base):
    """Blobs on a file system that fsspec knows; an object store's `put` is durable and atomic by itself."""

    def __init__(self, url: str) -> None:
        self._base = url.rstrip("/")
        # What an object store listed a while ago must not stand for what is there now: others put and remove.
        options = {"use_listings_cache": False} if url.startswith(_LISTING) else {}
        try:
            self._files, self._root = fsspec.core.url_to_fs(self._base, **options)
        except ImportError as error:
            hint = " (pip install 'polynya[s3]')" if url.startswith("s3") else ""
            raise ValueError(f"blob_url {url!r} needs a package that isn't installed: {error}{hint}") from error

    def _url(self, key: str) -> str:
        return f"{self._base}/{key}"

    def _read(self, key: str) -> bytes:
        return bytes(self._files.cat_file(f"{self._root}/{key}"))

    def _write(self, key: str, data: bytes) -> str:
        path = f"{self._root}/{key}"
        try:
            known_at = _modified_at(self._files.info(path))
        except FileNotFoundError:
            known_at = None
        if known_at is None or known_at < (time.time() - _RENEWED_AFTER_S) * 1000:
            try:
                self._files.pipe_file(path, data)
            except FileNotFoundError:  # a file system with folders, or a bucket that is to be made
                self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._files.pipe_file(path, data)
        return self._url(key)

    def _entries(self) -> list[BlobEntry]:
        self._files.invalidate_cache()
        if not self._files.exists(self._root):
            return []
        found = []
        for path, told in self._files.find(self._root, detail=True).items():
            owner, _, digest = path.rpartition("/")
            if _SHA256.fullmatch(digest):
                key = f"{owner.rpartition('/')[2]}/{digest}"
                found.append(BlobEntry(key, int(told.get("size") or 0), _modified_at(told)))
        return found

    def _remove(self, key: str, unless_after: int) -> bool:
        path = f"{self._root}/{key}"
        self._files.invalidate_cache()
        modified_at = _modified_at(self._files.info(path))
        if modified_at is None or modified_at > unless_after:
            return False
        self._files.rm_file(path)
        return True


def _modified_at(told: Mapping[str, Any]) -> int | None:
    """The time (UTC epoch ms) in what a file system tells of a file; each has its own name for it."""
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        match told.get(name):
            case datetime() as moment:
                return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
            case int() | float() as seconds:
                return round(seconds * 1000)
            case _:
                continue
    return None
