"""Finding and killing whole process trees through /proc, also the children that tried to leave.

A process belongs to a runtime when one of these holds: it descends from the launched program, it is in its session (`setsid`
leaves that), its environment has the runtime's marker (a cleared environment leaves that), or it works in the runtime's
directory without a terminal (a person's shell that only looks around there has one). A child has to defeat all four to escape, which only a hostile one would: runtime `local` is for trusted programs.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_KERNEL_THREAD = 0x00200000
# Each round kills what the one before it missed because it was being forked just then.
_ROUNDS = 50
_PAUSE_S = 0.02


async def said_by(process: asyncio.subprocess.Process, within_s: float) -> tuple[bytes, bytes]:
    """What a helper process says (stdout, stderr) until its end; it is gone afterwards, whatever happened.

    Raises:
        TimeoutError: it took longer than `within_s` seconds.
    """
    try:
        async with asyncio.timeout(within_s):
            return await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process table."""

    pid: int
    ppid: int
    sid: int
    has_terminal: bool
    is_zombie: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What the processes of one runtime have in common. Empty fields match nothing; members of `spared` families are others'.

    `pid_space` is a pid namespace as /proc names it (`pid:[…]`), `keepers` are those in it that belong to the sandbox itself.
    """

    leaders: frozenset[int] = frozenset()
    marker: bytes = b""
    directory: str = ""
    pid_space: str = ""
    keepers: frozenset[int] = frozenset()
    spared: tuple[Family, ...] = ()


def process_table() -> dict[int, Process]:
    """Every process that /proc shows, but for the kernel's own; those that end while we look are left out."""
    table: dict[int, Process] = {}
    for name in (entry.name for entry in os.scandir(_PROC)):
        if not name.isdigit():
            continue
        # The command's name may hold spaces and brackets: the numbers begin after the last one.
        fields = _read(name, "stat").rpartition(b")")[2].split()
        if fields and not int(fields[6]) & _KERNEL_THREAD:
            pid = int(name)
            table[pid] = Process(pid, int(fields[1]), int(fields[3]), fields[4] != b"0", fields[0] in b"ZX")
    return table


def _read(pid: int | str, name: str) -> bytes:
    """What /proc says of a process, nothing where it doesn't: plain calls, since a look at the table takes hundreds."""
    try:
        descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return b"".join(iter(lambda: os.read(descriptor, 65_536), b""))
    except OSError:  # it ended meanwhile
        return b""
    finally:
        os.close(descriptor)


def is_alive(pid: int) -> bool:
    """Whether a process runs (a zombie doesn't)."""
    try:
        stat = (_PROC / str(pid) / "stat").read_text("utf-8", "replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


async def exit_of(pid: int) -> None:
    """Returns when a process has ended, whoever reaps it.

    asyncio's own `wait` also waits until the last copy of the process' pipes is closed, which a child that was left in the
    background keeps open.
    """
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not ended.done():
            ended.set_result(None)

    loop.add_reader(descriptor, note)
    try:
        await ended
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def members(family: Family) -> set[int]:
    """The pids of a family's living processes; never our own."""
    table = process_table()
    found = _members(table, family)
    for other in family.spared:
        found -= _members(table, other)
    return {pid for pid in found if not table[pid].is_zombie}


def _members(table: dict[int, Process], family: Family) -> set[int]:
    found = {
        process.pid for process in table.values() if process.sid in family.leaders or process.pid in family.leaders
    }
    for pid, process in table.items():
        is_inside = not process.has_terminal and _works_in(pid, family.directory)
        if is_inside or _has_marker(pid, family.marker) or (family.pid_space and pid_space_of(pid) == family.pid_space):
            found.add(pid)
    grown = True
    while grown:
        grown = False
        for process in table.values():
            if process.pid not in found and process.ppid in found:
                found.add(process.pid)
                grown = True
    found.discard(os.getpid())
    return found - family.keepers


def pid_space_of(pid: int) -> str:
    """The pid namespace of a process, as /proc names it; empty where we may not know."""
    try:
        return str((_PROC / str(pid) / "ns" / "pid").readlink())
    except OSError:
        return ""


def is_in_container(pid: int, container_id: str) -> bool:
    """Whether what /proc shows under this number is a process of that container, and not of another machine's or another view."""
    try:
        return container_id in (_PROC / str(pid) / "cgroup").read_text("utf-8", "replace")
    except OSError:
        return False


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Sends a signal to each; those that are gone don't matter."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


async def kill_family(family: Family, *, grace_s: float = 0.0) -> int:
    """Ends every process of a family: SIGTERM, up to `grace_s` of patience, then SIGKILL until none is left.

    Returns how many were left at the end (0 but for processes that the kernel can't end).
    """
    if grace_s > 0:
        loop = asyncio.get_running_loop()
        send(await asyncio.to_thread(members, family), signal.SIGTERM)
        end = loop.time() + grace_s
        while loop.time() < end:
            if not await asyncio.to_thread(members, family):
                return 0
            await asyncio.sleep(_PAUSE_S)
    left: Collection[int] = ()
    for _round in range(_ROUNDS):
        left = await asyncio.to_thread(members, family)
        if not left:
            return 0
        send(left, signal.SIGKILL)
        await asyncio.sleep(_PAUSE_S)
    return len(left)


def _has_marker(pid: int, marker: bytes) -> bool:
    if not marker:
        return False
    environment = _read(pid, "environ")
    if marker not in environment:
        return False
    # Exactly this runtime, or one of a whole worker's: `one.1` must not match `one.10`.
    return any(item == marker or item.startswith(marker + b"/") for item in environment.split(b"\0"))


def _works_in(pid: int, directory: str) -> bool:
    if not directory:
        return False
    try:
        place = os.readlink(f"/proc/{pid}/cwd")  # noqa: PTH115 - as above
    except OSError:
        return False
    place = place.removesuffix(" (deleted)")
    return place == directory or place.startswith(f"{directory}/")
