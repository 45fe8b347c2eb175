"""Networks of runtimes: namespaces with nothing but a loopback, and sockets that listen there for the programs inside."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from stage_workers.runtimes.base import Listener, RuntimeFault
from stage_workers.runtimes.helper import NamespaceHelper

_BACKLOG = 128


@dataclass(slots=True)
class NetworkSpace:
    """A network namespace, kept alive by its descriptors. `user_fd` is the user namespace that owns it, -1 where that is ours."""

    user_fd: int
    net_fd: int
    helper: NamespaceHelper | None = None

    @classmethod
    async def new(cls, helper: NamespaceHelper | None = None) -> NetworkSpace:
        """A namespace of its own, with a loopback, by a helper that is there already or one for this time.

        Raises RuntimeFault where this machine allows none.
        """
        async with _lent(helper) as asked:
            user_fd, net_fd = await asked.ask("new")
        return cls(user_fd, net_fd, helper)

    @classmethod
    def of(cls, pid: int) -> NetworkSpace:
        """The one that a process is in. Raises RuntimeFault."""
        opened: list[int] = []
        try:
            opened.append(os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC))
            if Path(f"/proc/{pid}/ns/user").stat().st_ino == Path("/proc/self/ns/user").stat().st_ino:
                return cls(-1, opened[0])
            opened.append(os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            for descriptor in opened:
                os.close(descriptor)
            raise RuntimeFault(
                f"the network of the sandbox (process {pid}) can't be entered: {error.strerror}; run the worker as root, "
                "or as the user whose sandbox it is"
            ) from error
        return cls(opened[1], opened[0])

    @classmethod
    async def is_possible(cls) -> bool:
        """Whether this machine lets us have one."""
        try:
            (await cls.new()).close()
        except RuntimeFault:
            return False
        return True

    async def listen(self) -> Listener:
        """Opens a socket on its loopback. Raises RuntimeFault."""
        if self.net_fd < 0:
            raise RuntimeFault("the sandbox's network is gone: it was stopped")
        spaces = [number for number in (self.user_fd, self.net_fd) if number >= 0]
        async with _lent(self.helper) as asked:
            (descriptor,) = await asked.ask("listen", spaces)
        return listener_of(socket.socket(fileno=descriptor))

    def close(self) -> None:
        """Lets go of it; a second call does nothing."""
        for descriptor in (self.user_fd, self.net_fd):
            if descriptor >= 0:
                os.close(descriptor)
        self.user_fd = self.net_fd = -1


def listen_here() -> Listener:
    """A listener on this machine's own loopback. Raises RuntimeFault."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.bind(("127.0.0.1", 0))
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise RuntimeFault(f"no socket can be opened on the loopback: {error}") from error
    return listener_of(sock)


def listener_of(sock: socket.socket) -> Listener:
    """A listening socket, ready to be accepted from, with its address."""
    sock.setblocking(False)
    return Listener(sock=sock, address=f"http://127.0.0.1:{sock.getsockname()[1]}")


@contextlib.asynccontextmanager
async def _lent(helper: NamespaceHelper | None) -> AsyncIterator[NamespaceHelper]:
    """The given helper, or one for this time."""
    if helper is not None:
        yield helper
        return
    made = NamespaceHelper()
    try:
        yield made
    finally:
        made.close()
