"""What checks of a runtime's network need: things that listen, and a script that tries to reach them from inside."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from stage_workers.runtimes.base import Listener

NO_TOOL = 99
CONNECT_WITH_BASH = 'exec bash -c "exec 3<>/dev/tcp/$0/$1 && echo hello >&3 && read -r -t 5 line <&3 && echo \\$line"'
CONNECT = """
if command -v python3 >/dev/null; then
  exec python3 -c 'import socket,sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)
s.settimeout(5); s.sendall(b"hello\\n"); sys.stdout.write(s.recv(100).decode())' "$1" "$2"
elif command -v bash >/dev/null; then
  exec bash -c 'exec 3<>"/dev/tcp/$0/$1" || exit 1; echo hello >&3; read -r -t 5 line <&3; echo "$line"' "$1" "$2"
elif command -v nc >/dev/null; then
  echo hello | nc -w 5 "$1" "$2"
else
  exit 99
fi
"""
"""Connects to host $1, port $2, says hello, and prints the answer's line."""


@asynccontextmanager
async def answering(listener: Listener, word: bytes) -> AsyncIterator[str]:
    """Answers each line with a word, on a runtime's listener; gives its address."""
    async with _serving(listener.sock, word):
        yield listener.address


@asynccontextmanager
async def services() -> AsyncIterator[list[str]]:
    """Services of this machine that no sandbox may reach: on the loopback, and on every address; gives how they would be reached."""
    async with AsyncExitStack() as stack:
        found: list[str] = []
        for host in ("127.0.0.1", "0.0.0.0"):  # noqa: S104  # reachable is the point
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.bind((host, 0))
            sock.listen()
            sock.setblocking(False)
            await stack.enter_async_context(_serving(sock, b"service"))
            port = sock.getsockname()[1]
            found += [f"http://{name}:{port}" for name in ({host} - {"0.0.0.0"} or {"127.0.0.1", _own_address()})]  # noqa: S104
        yield found


def _own_address() -> str:
    """The address that other machines know this one by; the loopback where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        # Sends nothing: it only asks which of our addresses would be used (to an address kept for documentation).
        probe.connect(("192.0.2.1", 9))
        return str(probe.getsockname()[0])
    return "127.0.0.1"


@asynccontextmanager
async def _serving(sock: socket.socket, word: bytes) -> AsyncIterator[None]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            if await reader.readline():
                writer.write(word + b"\n")
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, sock=sock)
    try:
        yield
    finally:
        server.close()
        await server.wait_closed()
