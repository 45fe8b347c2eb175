"""Running a package manager: its own process group, a deadline, its last lines in the error, another try when the registry is away."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from harnesses.errors import InstallError, RegistryUnreachableError

_TAIL_LINES = 15
# What npm, uv and pip say when the other end can't be reached; anything else fails the same way again.
_UNREACHABLE = re.compile(
    r"ECONNRESET|ECONNREFUSED|ETIMEDOUT|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|ERR_SOCKET_TIMEOUT|socket hang up"
    r"|error sending request|dns error|tcp connect error|operation timed out|Failed to establish a new connection"
    r"|NewConnectionError|ReadTimeoutError|ConnectTimeout|network (?:connectivity|timeout)|\b50[234]\b",
    re.IGNORECASE,
)
# Waits between the tries, in seconds: a registry's hiccup is over after a few, an outage isn't waited for.
RETRY_WAITS_S = (2.0, 8.0)


def run_installer(
    argv: Sequence[str], *, cwd: Path, timeout_s: float, registry: str, env: Mapping[str, str] | None = None
) -> None:
    """Runs a package manager to its end; `registry` names in errors where the packages come from.

    Raises:
        RegistryUnreachableError: the registry couldn't be reached.
        InstallError: it failed otherwise, or the time is over (its whole process group is killed then).
    """
    name = Path(argv[0]).name
    try:
        process = subprocess.Popen(
            list(argv),
            cwd=cwd,
            env=None if env is None else dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        raise InstallError(f"{name} can't be run: {error}") from error
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        raise InstallError(
            f"{name} was not done after {timeout_s:.0f} s; is the {registry} registry reachable?"
        ) from error
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode == 0:
        return
    text = output.decode("utf-8", "replace").strip()
    tail = "\n".join(text.splitlines()[-_TAIL_LINES:])
    if is_unreachable(text):
        raise RegistryUnreachableError(f"the {registry} registry can't be reached; {name} said:\n{tail}")
    raise InstallError(f"{name} exited with {process.returncode}; its last lines:\n{tail}")


def is_unreachable(output: str) -> bool:
    """Whether a package manager's words mean that its registry couldn't be reached."""
    return _UNREACHABLE.search(output) is not None


def with_retries(action: Callable[[], None], report: Callable[[str], None]) -> None:
    """Does it, and does it again, a few times, while the registry can't be reached.

    Raises:
        InstallError: what the last try raised.
    """
    for wait_s in RETRY_WAITS_S:
        try:
            action()
        except RegistryUnreachableError as error:
            report(f"{str(error).splitlines()[0]} Another try in {wait_s:.0f} s …")
            time.sleep(wait_s)
        else:
            return
    action()
