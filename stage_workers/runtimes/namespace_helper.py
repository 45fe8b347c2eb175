"""Does for a worker what only a process with a single thread may do: makes network namespaces, and opens sockets in them.

Called as `python -I -S namespace_helper.py serve CHANNEL` or `… send PATH`. CHANNEL is the number of an inherited Unix socket that keeps
messages apart: `new` asks for a user and a network namespace, `listen` with the descriptors of a network namespace and before it,
where there is one, of its user namespace, for a listening socket there. Descriptors come back, or a message without any that says why
not. It serves until the other side is closed. `send` opens its socket in the network that it finds itself in, sends it to the Unix
socket at PATH and ends. On its own: it imports nothing of ours, so that it starts in a few milliseconds.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 1
_BACKLOG = 128
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter(user_fd: int, net_fd: int) -> None:
    """Goes into a user namespace (unless -1) and a network namespace. Raises OSError."""
    if user_fd >= 0:
        _checked(_libc.setns(user_fd, _CLONE_NEWUSER), "a user namespace can't be entered")
    _checked(_libc.setns(net_fd, _CLONE_NEWNET), "a network namespace can't be entered")


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("16sH14s", b"lo", 0, b"")
        flags = struct.unpack("16sH14s", fcntl.ioctl(probe, _SIOCGIFFLAGS, request))[1]
        if not flags & _IFF_UP:
            fcntl.ioctl(probe, _SIOCSIFFLAGS, struct.pack("16sH14s", b"lo", flags | _IFF_UP, b""))


def _map_ids(pid: int) -> None:
    """Every user and group that we have is itself inside; an ordinary user has itself alone."""
    own = Path(f"/proc/{pid}")
    if os.geteuid() == 0:
        for name in ("uid_map", "gid_map"):
            rows = [line.split() for line in Path(f"/proc/self/{name}").read_text("ascii").splitlines()]
            (own / name).write_text("".join(f"{inside} {inside} {count}\n" for inside, _, count in rows), "ascii")
        return
    (own / "setgroups").write_text("deny", "ascii")
    (own / "uid_map").write_text(f"{os.geteuid()} {os.geteuid()} 1\n", "ascii")
    (own / "gid_map").write_text(f"{os.getegid()} {os.getegid()} 1\n", "ascii")


def _forked(work: Callable[[socket.socket], None], meanwhile: Callable[[socket.socket, int], None]) -> None:
    """Does `work` in a child, which namespaces swallow, and `meanwhile` here; each has one end of a pair. Raises OSError, also the child's."""
    ours, childs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ours.close()
            work(childs)
            code = 0
        except OSError as error:
            childs.sendall(str(error).encode())
        finally:
            os._exit(code)
    childs.close()
    try:
        with ours:
            meanwhile(ours, pid)
            said = b"".join(iter(lambda: ours.recv(4096), b""))
    finally:
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        raise OSError(said.decode("utf-8", "replace") or f"the helper's child ended with {status}")


def new(channel: socket.socket) -> None:
    """Makes a user and a network namespace with a loopback that is up, and sends their descriptors. Raises OSError."""

    def inside(parent: socket.socket) -> None:
        _checked(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET), "no namespace can be made")
        parent.sendall(b"m")
        if parent.recv(1) != b"k":
            raise OSError("the users of a namespace can't be named")
        _raise_loopback()
        socket.send_fds(channel, [b"f"], [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("user", "net")])

    def outside(child: socket.socket, pid: int) -> None:
        # Nothing else is said before it: what comes instead is why not, and is read with the rest.
        if child.recv(1, socket.MSG_PEEK) == b"m":
            child.recv(1)
            _map_ids(pid)
            child.sendall(b"k")

    _forked(inside, outside)


def listen(channel: socket.socket, user_fd: int, net_fd: int) -> None:
    """Opens a listening socket on the loopback of a namespace, and sends it. Raises OSError."""

    def inside(_: socket.socket) -> None:
        enter(user_fd, net_fd)
        listen_here(channel)

    _forked(inside, lambda _child, _pid: None)


def listen_here(channel: socket.socket) -> None:
    """Opens a listening socket on the loopback of our own network, and sends it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(_BACKLOG)
        socket.send_fds(channel, [b"f"], [sock.fileno()])


def serve(channel: socket.socket) -> None:
    """Answers requests until nobody is left who could ask."""
    while True:
        request, given, _, _ = socket.recv_fds(channel, 64, 2)
        if not request:
            return
        try:
            if request == b"new":
                new(channel)
            else:
                listen(channel, given[0] if len(given) > 1 else -1, given[-1])
        except OSError as error:
            channel.sendall((str(error) or repr(error)).encode())
        finally:
            for descriptor in given:
                os.close(descriptor)


def main(argv: list[str]) -> int:
    """Does what it is asked; 1 where a socket can't be sent."""
    what, channel_name = argv
    if what == "serve":
        with socket.socket(fileno=int(channel_name)) as channel:
            serve(channel)
        return 0
    try:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.connect(channel_name)
            listen_here(channel)
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
