"""Is the cluster really up? A handful of bytes of Kafka's protocol, so that asking needs no client and no event loop."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

_METADATA, _FIND_COORDINATOR = 3, 10
_CLIENT_ID = b"polynya-probe"
_PROBE_GROUP = b"polynya-probe"


class ProbeFailedError(Exception):
    """The broker didn't answer, or not yet with what a running cluster says."""


@dataclass(frozen=True, slots=True)
class View:
    """What one broker knows of the cluster."""

    brokers: tuple[int, ...]
    """Ids of the live brokers."""
    controller_id: int
    """-1 while there is none."""


def view(host: str, port: int, *, timeout_s: float = 2.0) -> View:
    """Ask one broker for the live brokers and the controller (Metadata v1, no topics); raises `ProbeFailedError`."""
    body = _Reader(_ask(host, port, _METADATA, 1, struct.pack(">i", 0), timeout_s=timeout_s))
    brokers = []
    for _ in range(body.int32()):
        brokers.append(body.int32())
        body.string()  # host
        body.int32()  # port
        body.string()  # rack
    return View(tuple(sorted(brokers)), body.int32())


def coordinator(host: str, port: int, *, timeout_s: float = 2.0) -> int:
    """The id of the broker that coordinates some group (FindCoordinator v0); raises `ProbeFailedError` while there is none.

    Asking makes the broker create its offsets topic, so that the first consumer group doesn't have to wait for it.
    """
    request = struct.pack(">h", len(_PROBE_GROUP)) + _PROBE_GROUP
    body = _Reader(_ask(host, port, _FIND_COORDINATOR, 0, request, timeout_s=timeout_s))
    error = body.int16()
    if error != 0:
        raise ProbeFailedError(f"no group coordinator yet (error code {error})")
    return body.int32()


def _ask(host: str, port: int, api: int, version: int, body: bytes, *, timeout_s: float) -> bytes:
    message = struct.pack(">hhih", api, version, 1, len(_CLIENT_ID)) + _CLIENT_ID + body
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as connection:
            connection.sendall(struct.pack(">i", len(message)) + message)
            (size,) = struct.unpack(">i", _receive(connection, 4))
            return _receive(connection, size)[4:]  # after the correlation id
    except OSError as error:
        raise ProbeFailedError(f"{host}:{port}: {error}") from error


def _receive(connection: socket.socket, size: int) -> bytes:
    chunks = b""
    while len(chunks) < size:
        chunk = connection.recv(size - len(chunks))
        if not chunk:
            raise ProbeFailedError("the broker closed the connection")
        chunks += chunk
    return chunks


class _Reader:
    """Reads Kafka's primitive types off a response, front to back."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        if len(taken) < size:
            raise ProbeFailedError("the broker's answer ends too early")
        self._at += size
        return taken

    def int16(self) -> int:
        return int(struct.unpack(">h", self._take(2))[0])

    def int32(self) -> int:
        return int(struct.unpack(">i", self._take(4))[0])

    def string(self) -> str | None:
        size = self.int16()
        return None if size < 0 else self._take(size).decode()
