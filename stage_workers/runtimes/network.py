"""Sockets for the programs of a runtime: listening on the loopback of the network that they see."""

from __future__ import annotations

import socket

from stage_workers.runtimes.base import Listener, RuntimeFault

_BACKLOG = 128


def listen_here() -> Listener:
    """A listener on this machine's own loopback. Raises RuntimeFault."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.bind(("127.0.0.1", 0))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise RuntimeFault(f"no socket can be opened on the loopback: {error}") from error
    return Listener(sock=sock, address=f"http://127.0.0.1:{sock.getsockname()[1]}")
