"""Does for a worker what only a process with a single thread may do: makes network namespaces, and opens sockets in them.

Called as `python -I -S namespace_helper.py new CHANNEL`, `… listen CHANNEL USER NET` or `… send PATH`, where CHANNEL is the number of an
inherited Unix socket over which descriptors go back, PATH names one that is connected to, and USER and NET are inherited
descriptors of namespaces (USER -1: none); `send` opens its socket in the network that it finds itself in. On its own: it imports nothing of ours, so that it starts in a few milliseconds. What goes wrong is its last line on standard error, exit code 1.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
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


def new(channel: socket.socket) -> None:
    """Makes a user and a network namespace with a loopback that is up, and sends their descriptors."""
    made, mapped = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _checked(_libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET), "no namespace can be made")
            made.sendall(b"m")
            if mapped_ok := made.recv(1) == b"k":
                _raise_loopback()
                spaces = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in ("user", "net")]
                socket.send_fds(channel, [b"f"], spaces)
            code = 0 if mapped_ok else 1
        except OSError as error:
            sys.stderr.write(f"{error}\n")
            sys.stderr.flush()
        finally:
            os._exit(code)
    made.close()
    try:
        if mapped.recv(1) == b"m":
            _map_ids(pid)
            mapped.sendall(b"k")
    finally:
        mapped.close()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status != 0:
        raise SystemExit(1)


def listen(channel: socket.socket, user_fd: int, net_fd: int) -> None:
    """Opens a listening socket on the loopback of a namespace, and sends it."""
    enter(user_fd, net_fd)
    listen_here(channel)


def listen_here(channel: socket.socket) -> None:
    """Opens a listening socket on the loopback of our own network, and sends it."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(_BACKLOG)
        socket.send_fds(channel, [b"f"], [sock.fileno()])


def main(argv: list[str]) -> int:
    """Does what it is asked; 1 where that can't be."""
    what, channel_name, *spaces = argv
    try:
        if what == "send":
            with socket.socket(socket.AF_UNIX) as channel:
                channel.connect(channel_name)
                listen_here(channel)
            return 0
        with socket.socket(fileno=int(channel_name)) as channel:
            if what == "new":
                new(channel)
            else:
                listen(channel, int(spaces[0]), int(spaces[1]))
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
