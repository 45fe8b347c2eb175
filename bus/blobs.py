"""Large values outside the log: content-addressed blobs on any fsspec file system, checked whenever they're read."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import uuid
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote, urlsplit

import fsspec

from bus.errors import BlobCorruptError, BlobMissingError, BlobStoreUnavailableError

_TIMEOUT_S: Final = 60.0
"""For one read or write of some megabytes."""

_PATIENCE_S: Final = (0.1, 0.5, 1.5)
"""A blob is written before its record; a shared file system may still show it a moment later on another machine."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}")


class BlobStore(Protocol):
    """Where blobs are kept. A blob's key is `<owner>/<sha256>`; the owner is the session that it belongs to."""

    async def put(self, owner: str, data: bytes) -> str:
        """Store `data` durably and return its URL; storing the same again is harmless. Raises `BlobStoreUnavailableError`."""
        ...

    async def get(self, url: str) -> bytes:
        """The bytes of a blob, verified. Raises `BlobMissingError`, `BlobCorruptError` or `BlobStoreUnavailableError`."""
        ...


def open_store(url: str) -> BlobStore:
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
        url: str = await self._away(self._write, blob_key(owner, data), data)
        return url

    async def get(self, url: str) -> bytes:
        """See `BlobStore.get`."""
        key = _key_of(url)
        for pause_s in (*_PATIENCE_S, None):
            try:
                return _verified(await self._away(self._read, key), key, self._url(key))
            except FileNotFoundError as error:
                if pause_s is None:
                    raise BlobMissingError(f"blob {self._url(key)} isn't there (the claim check says {url})") from error
                await asyncio.sleep(pause_s)
        raise AssertionError("unreachable: the last round returns or raises")

    async def _away(self, function: Any, *arguments: Any) -> Any:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await asyncio.to_thread(function, *arguments)
        except FileNotFoundError:
            raise
        except (OSError, TimeoutError) as error:
            raise BlobStoreUnavailableError(f"blob store {self._url('')}: {error!r}") from error

    @abstractmethod
    def _write(self, key: str, data: bytes) -> str:
        """Write a blob, whole or not at all, and return its URL; may block."""

    @abstractmethod
    def _read(self, key: str) -> bytes:
        """A blob's bytes; may block. Raises FileNotFoundError."""

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
        if not path.exists():  # what has its name has its content, durably: the rename came last
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
        self._files, self._root = fsspec.core.url_to_fs(self._base)

    def _url(self, key: str) -> str:
        return f"{self._base}/{key}"

    def _read(self, key: str) -> bytes:
        return bytes(self._files.cat_file(f"{self._root}/{key}"))

    def _write(self, key: str, data: bytes) -> str:
        path = f"{self._root}/{key}"
        if not self._files.exists(path):
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(path, data)
        return self._url(key)
