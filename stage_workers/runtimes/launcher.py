"""Runs between fork and exec of every program of runtime `local`: enters its network, sets its limits, ties it to its worker, becomes it.

Called as `python -I -S launcher.py NAME=VALUE,… WORKER_PID [USER_FD+NET_FD] -- argv…` (an empty text: no network of its own), on its own: it imports nothing of ours, so that it starts in
a few milliseconds. A program that can't be executed ends with 127 (not found) or 126, as in a shell.
"""

from __future__ import annotations

import _ctypes
import _signal  # type: ignore[import-not-found]  # the half of `signal` that is compiled
import os
import resource
import sys

_PR_SET_PDEATHSIG = 1
_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_RESOURCES = {
    "data": resource.RLIMIT_DATA,
    "nproc": resource.RLIMIT_NPROC,
    "fsize": resource.RLIMIT_FSIZE,
    "core": resource.RLIMIT_CORE,
}


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]  # noqa: SLF001  # what `ctypes.c_int` is, too
    _type_ = "i"


class _Function(_ctypes.CFuncPtr):
    """A function of the C library, as `ctypes` makes them: importing that, and `signal`, takes as long as all the rest here."""

    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Int


def _libc(name: str) -> _Function:
    return _Function(_ctypes.dlsym(_ctypes.dlopen("", 0), name))


def main(argv: list[str]) -> int:
    """Never returns when the program could be executed."""
    limits, worker_pid, spaces, _separator, *program = argv
    for space, kind in zip(filter(None, spaces.split("+")), (_CLONE_NEWUSER, _CLONE_NEWNET), strict=False):
        if _libc("setns")(int(space), kind) != 0:
            sys.stderr.write(f"the session's network can't be entered: {os.strerror(_ctypes.get_errno())}\n")
            return 126
        os.close(int(space))
    # After the namespaces, since entering one takes this tie away. A worker that is killed takes its programs with it: nobody could enforce their deadlines any more.
    _libc("prctl")(_PR_SET_PDEATHSIG, _signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(worker_pid):
        return 1
    for item in filter(None, limits.split(",")):
        name, _, value = item.partition("=")
        if name == "cores":
            os.sched_setaffinity(0, {int(core) for core in value.split("+")})
            continue
        hard = resource.getrlimit(_RESOURCES[name])[1]
        wanted = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
        resource.setrlimit(_RESOURCES[name], (wanted, wanted))
    # The worker ignores what asyncio made it ignore; the program starts with the usual dispositions.
    _signal.signal(_signal.SIGPIPE, _signal.SIG_DFL)
    try:
        os.execvp(program[0], program)  # noqa: S606  # no shell is the point
    except FileNotFoundError:
        sys.stderr.write(f"{program[0]}: not found on the PATH {os.environ.get('PATH', '')}\n")
        return 127
    except OSError as error:
        sys.stderr.write(f"{program[0]}: {error.strerror}\n")
        return 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
