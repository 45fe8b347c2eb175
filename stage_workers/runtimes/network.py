"""Networks of runtimes: namespaces with nothing but a loopback, and sockets that listen there for the programs inside."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stage_workers.runtimes import namespace_helper
from stage_workers.runtimes.base import Listener, RuntimeFault
from stage_workers.runtimes.processes import said_by

_BACKLOG = 128
# The helper takes some 20 ms; on a machine that is overwhelmed, seconds.
_HELPER_S = 30.0


@dataclass(slots=True)
class NetworkSpace:
    """A network namespace, kept alive by its descriptors. `user_fd` is the user namespace that owns it, -1 where that is ours."""

    user_fd: int
    net_fd: int

    @classmethod
    async def new(cls) -> NetworkSpace:
        """A namespace of its own, with a loopback. Raises RuntimeFault where this machine allows none."""
        user_fd, net_fd = await _help("new", [])
        return cls(user_fd, net_fd)

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
        (descriptor,) = await _help("listen", [self.user_fd, self.net_fd])
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


async def _help(what: str, descriptors: Sequence[int]) -> list[int]:
    """Runs the helper and returns the descriptors that it sends. Raises RuntimeFault."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                namespace_helper.__file__,
                what,
                str(theirs.fileno()),
                *map(str, descriptors),
                pass_fds=[theirs.fileno(), *(number for number in descriptors if number >= 0)],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
            )
        try:
            _, said = await said_by(process, _HELPER_S)
        except TimeoutError:
            raise RuntimeFault(f"the namespace helper hung for {_HELPER_S:.0f} s") from None
        # Its end of the channel is closed by now: this can't block.
        _, found, _, _ = socket.recv_fds(ours, 1, 4)
        if process.returncode != 0:
            for descriptor in found:
                os.close(descriptor)
            text = " | ".join(said.decode("utf-8", "replace").split("\n")[-2:]).strip(" |")
            raise RuntimeFault(
                f"no network of its own for the sandbox: {text or f'helper ended with {process.returncode}'}"
            )
    return list(found)
