"""Runtime `local`, with real processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from stage_workers.runtimes import Limits, LocalRuntime, RuntimeFault
from stage_workers.runtimes.processes import Family, members

SETSID_CHILD = "import os,time,sys\nif os.fork()==0:\n os.setsid()\n open(sys.argv[1],'w').write(str(os.getpid()))\n time.sleep(60)\n"


@pytest.fixture
async def runtime(tmp_path: Path):
    place = LocalRuntime(tmp_path, "one", owner="tests", grace_s=0.2)
    await place.start()
    yield place
    await place.stop()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


async def test_output_and_exit_code_come_back(runtime: LocalRuntime) -> None:
    """A program's two streams are kept apart, and its exit code is what it said."""
    result = await runtime.exec(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"], timeout_s=20)
    assert (result.exit_code, result.stdout, result.stderr, result.timed_out) == (3, b"out\n", b"err\n", False)


async def test_environment_starts_empty(runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker's own variables (its keys above all) don't reach a program; HOME and TMPDIR are the session's."""
    monkeypatch.setenv("POLYNYA_ADMIN_KEY", "very-secret")
    result = await runtime.exec(["env"], timeout_s=20, env={"MINE": "yes"}, path_dirs=("/opt/first",))
    seen = dict(line.split("=", 1) for line in result.stdout.decode().splitlines())
    assert "POLYNYA_ADMIN_KEY" not in seen
    assert seen["HOME"] == runtime.home
    assert seen["TMPDIR"].endswith("/one/tmp")
    assert seen["MINE"] == "yes"
    assert seen["PATH"].startswith("/opt/first:")


async def test_timeout_keeps_output_and_kills(runtime: LocalRuntime) -> None:
    """At the time-out the program dies, although it ignores SIGTERM, and what it said until then is kept."""
    started = time.monotonic()
    result = await runtime.exec(["/bin/sh", "-c", "trap '' TERM; echo before; sleep 60 & wait"], timeout_s=0.5)
    assert result.timed_out
    assert result.stdout == b"before\n"
    assert result.exit_code == 128 + signal.SIGKILL
    assert time.monotonic() - started < 20
    assert not members(Family(directory=str(Path(runtime.workdir).parent)))


async def test_child_that_left_the_session_is_killed(runtime: LocalRuntime, tmp_path: Path) -> None:
    """A background child that called setsid, and outlived its parent, is found by the marker and killed."""
    note = tmp_path / "pid"
    result = await runtime.exec([sys.executable, "-c", SETSID_CHILD, str(note)], timeout_s=20)
    assert (result.exit_code, result.timed_out) == (0, False)
    for _ in range(100):
        if note.exists() and note.read_text():
            break
        await asyncio.sleep(0.02)
    if note.exists() and note.read_text():
        assert not alive(int(note.read_text()))
    assert not members(Family(marker=b"POLYNYA_RUNTIME=tests/one"))


async def test_child_with_cleared_environment_is_killed(runtime: LocalRuntime, tmp_path: Path) -> None:
    """A child that left the session *and* cleared its environment is still found by where it works."""
    note = tmp_path / "pid"
    script = (
        f"setsid env -i /bin/sh -c 'echo $$ > {note}; exec /bin/sleep 60' & while [ ! -s {note} ]; do sleep 0.02; done"
    )
    result = await runtime.exec(["/bin/sh", "-c", script], timeout_s=20)
    assert not result.timed_out
    assert not alive(int(note.read_text()))


async def test_cancelling_kills(runtime: LocalRuntime) -> None:
    """A cancelled exec leaves nothing behind."""
    ready = asyncio.Event()
    task = asyncio.create_task(
        runtime.exec(["/bin/sh", "-c", "echo up; sleep 60"], timeout_s=60, on_output=lambda _stream, _data: ready.set())
    )
    async with asyncio.timeout(20):
        await ready.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not members(Family(marker=b"POLYNYA_RUNTIME=tests/one"))


async def test_output_is_bounded(runtime: LocalRuntime) -> None:
    """Of much output the first and the last part are kept, and a line says how much is missing."""
    script = "import sys\nfor n in range(200000): sys.stdout.write('line %d\\n' % n)"
    seen = 0

    def count(_stream: str, data: bytes) -> None:
        nonlocal seen
        seen += len(data)

    result = await runtime.exec([sys.executable, "-c", script], timeout_s=60, on_output=count, keep_bytes=4000)
    assert result.stdout.startswith(b"line 0\n")
    assert result.stdout.endswith(b"line 199999\n")
    assert len(result.stdout) < 4100
    assert b"[... %d bytes left out ...]" % (seen - 4000) in result.stdout


async def test_limits_hold(tmp_path: Path) -> None:
    """Memory, file size and cores are limited as asked; no core files are written."""
    limits = Limits(memory_bytes=200_000_000, file_bytes=10_000, cpus=1)
    place = LocalRuntime(tmp_path, "limited", owner="tests", limits=limits)
    await place.start()
    try:
        memory = await place.exec([sys.executable, "-c", "x = bytearray(500_000_000)"], timeout_s=30)
        assert memory.exit_code == 1
        assert b"MemoryError" in memory.stderr
        file = await place.exec(["/bin/sh", "-c", "head -c 100000 /dev/zero > big"], timeout_s=30)
        assert file.exit_code != 0
        assert len(await place.download("big")) == 10_000
        cores = await place.exec(["/bin/sh", "-c", "nproc; ulimit -c"], timeout_s=30)
        assert cores.stdout.split() == [b"1", b"0"]
    finally:
        await place.stop()


async def test_missing_directory_is_a_fault(runtime: LocalRuntime) -> None:
    """A working directory that isn't there is told, not made up."""
    with pytest.raises(RuntimeFault, match=r"can't be started in .*/nowhere"):
        await runtime.exec(["true"], timeout_s=20, cwd=f"{runtime.workdir}/nowhere")


async def test_person_who_looks_around_is_spared(runtime: LocalRuntime) -> None:
    """A shell with a terminal that merely stands in the directory isn't one of the session's processes."""
    pid, terminal = os.forkpty()
    if pid == 0:
        os.chdir(runtime.workdir)
        os.execvp("sleep", ["sleep", "60"])
    try:
        async with asyncio.timeout(10):
            while Path(f"/proc/{pid}/cwd").readlink().name != "work":
                await asyncio.sleep(0.01)
        await runtime.exec(["true"], timeout_s=20)
        assert alive(pid)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


async def test_missing_program_is_127(runtime: LocalRuntime) -> None:
    """A program that isn't there ends as in a shell, and says where it was looked for."""
    result = await runtime.exec(["no-such-program-anywhere"], timeout_s=20)
    assert result.exit_code == 127
    assert b"not found on the PATH" in result.stderr


async def test_stdin_is_given(runtime: LocalRuntime) -> None:
    """Standard input is what was given, and empty otherwise."""
    assert (await runtime.exec(["cat"], timeout_s=20, stdin=b"words")).stdout == b"words"
    assert (await runtime.exec(["cat"], timeout_s=20)).stdout == b""


async def test_upload_and_download(runtime: LocalRuntime) -> None:
    """A file goes in with its mode and comes out the same; a missing or too large one is a fault."""
    await runtime.upload("a/b.sh", b"#!/bin/sh\necho hi\n", 0o755)
    assert (await runtime.exec(["./a/b.sh"], timeout_s=20)).stdout == b"hi\n"
    assert await runtime.download("a/b.sh") == b"#!/bin/sh\necho hi\n"
    with pytest.raises(RuntimeFault, match="larger than 3 bytes"):
        await runtime.download("a/b.sh", limit_bytes=3)
    with pytest.raises(RuntimeFault, match="can't be read"):
        await runtime.download("nothing")


async def test_stop_removes_everything(tmp_path: Path) -> None:
    """After stop the directory is gone, and so is a process that still worked in it; a second stop is harmless."""
    place = LocalRuntime(tmp_path, "gone", owner="tests")
    await place.start()
    (Path(place.workdir) / "file").write_text("x")
    process = await asyncio.create_subprocess_exec("sleep", "60", cwd=place.workdir)
    await place.stop()
    async with asyncio.timeout(10):
        assert await process.wait() == -signal.SIGKILL
    await place.stop()
    assert list(tmp_path.iterdir()) == []


async def test_program_dies_with_its_worker(tmp_path: Path) -> None:
    """A worker killed with SIGKILL takes the running program with it."""
    note = tmp_path / "pid"
    script = (
        "import asyncio, pathlib, sys\n"
        "from stage_workers.runtimes import LocalRuntime\n"
        "async def main():\n"
        f"    place = LocalRuntime(pathlib.Path({str(tmp_path)!r}), 'w', owner='tests')\n"
        "    await place.start()\n"
        f"    await place.exec(['/bin/sh', '-c', 'echo $$ > {note}; exec sleep 60'], timeout_s=60)\n"
        "asyncio.run(main())\n"
    )
    worker = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
    async with asyncio.timeout(30):
        while not (note.exists() and note.read_text().strip()):
            await asyncio.sleep(0.02)
        pid = int(note.read_text())
        os.kill(worker.pid, signal.SIGKILL)
        await worker.wait()
        while alive(pid):
            await asyncio.sleep(0.02)
    assert worker.returncode == -signal.SIGKILL


async def test_listener_is_reached_from_inside(runtime: LocalRuntime) -> None:
    """A program connects to a listener's address, and the worker accepts it there; two listeners are two sockets."""
    one, two = await runtime.listen(), await runtime.listen()
    assert one.address != two.address
    script = "import socket,sys; s=socket.create_connection(('127.0.0.1', int(sys.argv[1].rsplit(':',1)[1]))); print(s.recv(9))"
    program = asyncio.create_task(runtime.exec([sys.executable, "-c", script, one.address], timeout_s=20))
    try:
        async with asyncio.timeout(20):
            accepted, _peer = await asyncio.get_running_loop().sock_accept(one.sock)
        with accepted:
            accepted.sendall(b"hello")
        assert (await program).stdout == b"b'hello'\n"
    finally:
        one.sock.close()
        two.sock.close()
