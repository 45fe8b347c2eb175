"""The worker's side of the namespace helper: one process that lives on, since starting one for each session costs more than its work."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import weakref
from collections.abc import Sequence

from stage_workers.runtimes import namespace_helper
from stage_workers.runtimes.base import RuntimeFault

# An answer takes a few milliseconds; on a machine that is overwhelmed, seconds.
_ANSWER_S = 30.0
_LONGEST = 4096


async def heard(channel: socket.socket, longest: int, descriptors: int) -> tuple[bytes, list[int]]:
    """What comes next on a channel, with the descriptors that come along; nothing at its end."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(channel.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(channel.fileno())
    said, found, _, _ = socket.recv_fds(channel, longest, descriptors)
    return said, list(found)


class NamespaceHelper:
    """Begun when it is first asked, and anew when it has ended. It ends with its owner, however that ends: it reads our channel's end."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._end: weakref.finalize[[subprocess.Popen[bytes], socket.socket], NamespaceHelper] | None = None

    async def ask(self, what: str, descriptors: Sequence[int] = ()) -> list[int]:
        """The descriptors that come back for a request (see `namespace_helper`). Raises RuntimeFault."""
        async with self._turn:
            try:
                async with asyncio.timeout(_ANSWER_S):
                    said, found = await self._answer(what.encode(), descriptors)
            except TimeoutError:
                self.close()
                raise RuntimeFault(f"the namespace helper hung for {_ANSWER_S:.0f} s") from None
            except OSError as error:
                self.close()
                raise RuntimeFault(f"the namespace helper can't be asked: {error}") from error
            except BaseException:  # its answer would be taken for the next one's
                self.close()
                raise
        if not found:
            raise RuntimeFault(f"no network of its own for the sandbox: {said.decode('utf-8', 'replace')}")
        return found

    async def _answer(self, what: bytes, descriptors: Sequence[int]) -> tuple[bytes, list[int]]:
        channel = self._begun()
        socket.send_fds(channel, [what], descriptors)
        said, found = await heard(channel, _LONGEST, 2)
        if not said:
            self.close()
            said = b"the helper ended"
        return said, found

    def _begun(self) -> socket.socket:
        if self._channel is not None and self._process is not None and self._process.poll() is None:
            return self._channel
        self.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", namespace_helper.__file__, "serve", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except BaseException:  # raised again: only our end of the pair is given back
            ours.close()
            raise
        self._channel = ours
        self._end = weakref.finalize(self, _end, self._process, ours)
        return ours

    def close(self) -> None:
        """Ends it; the next request begins another one."""
        if self._end is not None:
            self._end()
        self._end = self._process = self._channel = None


def _end(process: subprocess.Popen[bytes], channel: socket.socket) -> None:
    channel.close()
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()
