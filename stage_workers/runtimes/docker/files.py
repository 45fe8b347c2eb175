"""Files into and out of a container, as the engine takes and gives them: tar archives."""

from __future__ import annotations

import io
import tarfile
import time
from typing import Any

from stage_workers.runtimes.base import RuntimeFault

# Go's mode bit for a directory.
_GO_DIRECTORY = 1 << 31
# What an archive of one file holds beside the file: headers (also long names), padding, the end.
_OVERHEAD_BYTES = 64 * 1024


def pack(path: str, content: bytes, mode: int, user: tuple[int, int]) -> bytes:
    """An archive, to be unpacked at `/`, with one file of `user` (uid, gid)."""
    entry = _entry(path, mode, user)
    entry.size = len(content)
    return _archive(entry, content)


def pack_directory(path: str, user: tuple[int, int]) -> bytes:
    """An archive, to be unpacked at `/`, with one directory that is its user's own."""
    entry = _entry(path, 0o755, user)
    entry.type = tarfile.DIRTYPE
    return _archive(entry, b"")


def fetch(client: Any, container: str, path: str, limit_bytes: int) -> bytes:
    """Reads a file of a container. Blocks.

    Raises:
        RuntimeFault: it is no file, or larger than the limit.
        docker.errors.NotFound: it, or the container, isn't there.
    """
    chunks, found = client.get_archive(container, path)
    if found.get("linkTarget") and found["linkTarget"] != path:
        chunks.close()
        chunks, found = client.get_archive(container, found["linkTarget"])
    try:
        if found["mode"] & _GO_DIRECTORY:
            raise RuntimeFault(f"{path} can't be read: it is a directory")
        if found["size"] > limit_bytes:
            raise RuntimeFault(f"{path} is larger than {limit_bytes} bytes")
        archive = bytearray()
        for chunk in chunks:
            archive += chunk
            # It may grow while it is read.
            if len(archive) > limit_bytes + _OVERHEAD_BYTES:
                raise RuntimeFault(f"{path} is larger than {limit_bytes} bytes")
    finally:
        chunks.close()
    with tarfile.open(fileobj=io.BytesIO(bytes(archive))) as opened:
        member = opened.next()
        file = None if member is None or not member.isreg() else opened.extractfile(member)
        if file is None:
            raise RuntimeFault(f"{path} can't be read: it is no regular file")
        return file.read()


def _entry(path: str, mode: int, user: tuple[int, int]) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path.lstrip("/"))
    entry.mode = mode
    entry.uid, entry.gid = user
    entry.mtime = int(time.time())
    return entry


def _archive(entry: tarfile.TarInfo, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
