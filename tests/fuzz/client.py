"""Random requests over bare sockets: how they are framed, where they go, and at which point the client leaves."""

from __future__ import annotations

import asyncio
import base64
import random
from collections import Counter
from dataclasses import dataclass

from tests.capture_proxy.wire import WIRES
from tests.fuzz.bodies import PACKERS, body_bytes

HEADERS = (
    b"x-session-id: s1\r\n",
    b"x-stainless-retry-count: 3\r\n",
    b"accept-encoding: br, zstd\r\n",
    b"anthropic-version: 2023-06-01\r\n",
    b"x-junk: " + b"j" * 5000 + b"\r\n",
    b"x-bytes: \xff\xfe\r\n",
    b"cookie: a=b\r\n",
    b"upgrade: websocket\r\nconnection: Upgrade\r\n",
    b"expect: 100-continue\r\n",
    b"content-type: text/plain\r\n",
)
PATHS = (
    "/v1/models",
    "/v1/models/x?limit=1",
    "/",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1beta/models",
    "/v1beta/models/m:countTokens",
    "/v1/%zz",
    "/v1/chat/completions/",
    "//v1//messages",
    "/s/",
    "/call",
)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes: the listeners' ports and the secret of an open lease."""

    port: int
    forward_port: int
    secret: str


@dataclass(frozen=True, slots=True)
class Request:
    """One request as bytes, for which listener, and how much of it and of its answer the client stays for (None: all)."""

    port: int
    head: bytes
    body: bytes
    send_bytes: int | None = None
    read_bytes: int | None = None
    is_reset: bool = False
    stay_s: float = 0.0
    """How long a client that reads nothing waits before it leaves: long enough for some calls to have begun."""


def make(rng: random.Random, target: Target) -> Request:
    """A random request."""
    wire = rng.choice(WIRES)
    path = getattr(wire, "stream_path", wire.path) if rng.random() < 0.5 else wire.path
    method = "POST"
    if rng.random() < 0.08:
        path, method = rng.choice(PATHS), rng.choice(("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS"))
    body = body_bytes(rng, wire) if method == "POST" or rng.random() < 0.3 else b""
    lines = [rng.choice(HEADERS) for _ in range(rng.randrange(3))] if rng.random() < 0.3 else []
    if rng.random() < 0.1:
        name = rng.choice(sorted(PACKERS))
        body = PACKERS[name](body) if rng.random() < 0.7 else body
        lines.append(f"content-encoding: {name}\r\n".encode())
    secret = target.secret if rng.random() < 0.95 else rng.choice(("", "wrong", "%00", "x" * 300))
    place = rng.random()
    port = target.port
    if place < 0.1:  # through the forward listener, unencrypted: TLS would only cost time here
        port = target.forward_port
        credentials = base64.b64encode(f"{secret}:x".encode()).decode()
        lines.append(f"proxy-authorization: Basic {credentials}\r\n".encode())
        host = rng.choice(("api.openai.com", "api.anthropic.com", "evil.test", "127.0.0.1:1"))
        if rng.random() < 0.1:
            method, path = "CONNECT", f"{host}:443"
        else:
            path = f"http://{host}{path}"
    elif place < 0.6:
        path = f"/s/{secret}{path}"
    else:
        lines.append(f"authorization: Bearer {secret}\r\n".encode())
    is_chunked = rng.random() < 0.1
    framing = b"transfer-encoding: chunked\r\n" if is_chunked else f"content-length: {len(body)}\r\n".encode()
    if rng.random() < 0.01:
        framing = rng.choice((b"content-length: -5\r\n", b"content-length: x\r\n", b"", framing + framing))
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: fuzz\r\nconnection: close\r\n".encode()
        + b"".join(lines)
        + framing
        + b"\r\n"
    )
    if is_chunked:
        body = b"".join(f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in (body[:100], body[100:]) if part)
        body += b"0\r\n\r\n"
    total = len(head) + len(body)
    send = rng.randrange(total) if rng.random() < 0.04 else None
    read = rng.choice((0, 1, 40, 400)) if send is None and rng.random() < 0.12 else None
    if method == "CONNECT" and send is None:
        read = 12  # an open tunnel has no end of its own
    return Request(port, head, body, send, read, rng.random() < 0.5, rng.choice((0.0, 0.03, 0.08)))


async def play(request: Request, outcomes: Counter[str]) -> None:
    """Sends a request and reads its answer to the end of the connection, or leaves where it says. Notes the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", request.port)
    data = request.head + request.body
    answer = b""
    try:
        writer.write(data if request.send_bytes is None else data[: request.send_bytes])
        await writer.drain()
        if request.send_bytes is None and request.read_bytes is None:
            answer = await reader.read(-1)
        elif request.read_bytes == 0:
            await asyncio.sleep(request.stay_s)
        elif request.read_bytes:
            answer = await reader.readexactly(request.read_bytes)
    except (ConnectionError, asyncio.IncompleteReadError):
        outcomes["cut"] += 1
    finally:
        if request.is_reset and (request.send_bytes is not None or request.read_bytes is not None):
            writer.transport.abort()
        else:
            writer.close()
    if answer:
        outcomes[answer[9:12].decode("ascii", "replace")] += 1
    else:
        outcomes["left"] += 1
