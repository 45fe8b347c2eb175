"""The program `apptainer`: called under deadlines, with little of our own environment; its instances found again and stopped."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping, Sequence

import orjson
import structlog

from schemas import ids
from stage_workers.runtimes import launcher
from stage_workers.runtimes.base import RuntimeFault
from stage_workers.runtimes.processes import said_by
from stage_workers.runtimes.programs import MARKER_VARIABLE

log = structlog.get_logger(__name__)

PROGRAM = "apptainer"
_CALL_S = 120.0
_PASSED_ON = ("PATH", "TZ", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "USER", "LOGNAME")


def instance_name(owner: str, name: str) -> str:
    """A name that apptainer takes; it begins with the worker's, so that its instances are found again."""
    worker, _, incarnation = owner.rpartition("/")
    return f"{instance_prefix(worker)}{ids.digest(f'{incarnation}/{name}'.encode())[:16]}"


def instance_prefix(worker: str) -> str:
    """What the names of all instances of a worker begin with."""
    return f"polynya-{ids.digest(worker.encode())[:12]}-"


async def spawn_apptainer(
    argv: Sequence[str], env: Mapping[str, str], mark: str, *, has_stdin: bool = False
) -> asyncio.subprocess.Process:
    """Starts the program with little of our own environment. Raises RuntimeFault where it isn't there."""
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    environment |= {"HOME": os.environ.get("HOME", "/"), MARKER_VARIABLE: mark, **env}
    program = shutil.which(PROGRAM)
    if program is None:
        raise RuntimeFault(
            "apptainer is not on the PATH; install it (https://apptainer.org/docs/admin/latest/installation.html), "
            "or use runtime.kind: docker"
        )
    try:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", launcher.__file__, "core=0", str(os.getpid()), "", "--", program, *argv),
            env=environment,
            stdin=asyncio.subprocess.PIPE if has_stdin else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise RuntimeFault(f"{program} can't be started: {error}") from error


async def call_apptainer(*argv: str, mark: str) -> bytes:
    """Runs it to its end and returns what it printed. Raises RuntimeFault."""
    process = await spawn_apptainer(argv, {}, mark)
    try:
        said, complained = await said_by(process, _CALL_S)
    except TimeoutError:
        raise RuntimeFault(f"`apptainer {' '.join(argv[:2])}` took longer than {_CALL_S:.0f} s") from None
    if process.returncode != 0:
        lines = complained.decode("utf-8", "replace").strip().splitlines()
        raise RuntimeFault(f"`apptainer {' '.join(argv[:2])}` failed: {' | '.join(lines[-3:])}")
    return bytes(said)


async def reap_instances(worker: str) -> int:
    """Stops every instance of a worker's earlier incarnations; returns how many. Where there is no apptainer, none; never raises."""
    if shutil.which(PROGRAM) is None:
        return 0
    count = 0
    try:
        listed = orjson.loads(await call_apptainer("instance", "list", "--json", mark=worker))
        for row in listed.get("instances") or []:
            if str(row["instance"]).startswith(instance_prefix(worker)):
                await call_apptainer("instance", "stop", "--signal", "KILL", str(row["instance"]), mark=worker)
                log.warning("instance.reaped", instance=row["instance"])
                count += 1
    except (RuntimeFault, orjson.JSONDecodeError, LookupError, TypeError) as error:
        log.warning("instances.unseen", why=str(error))
    return count
