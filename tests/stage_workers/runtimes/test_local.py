"""Runtime `local` does what every runtime must, with a network of its own and without."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from schemas.task import RuntimeSpec
from stage_workers.runtimes import RuntimeFault
from stage_workers.runtimes.checks import Bench
from stage_workers.runtimes.factory import Runtimes
from tests.stage_workers.runtimes.base import RuntimeTests


async def test_a_pipe_in_a_file_s_place(tmp_path: Path) -> None:
    """A pipe that a program left where a file is to be read or written is a fault at once: nobody waits for its other end."""
    runtime = Runtimes(root=tmp_path, owner="tests/one", isolates_local=False)(RuntimeSpec(), "pipes")
    await runtime.start()
    try:
        os.mkfifo(Path(runtime.workdir) / "pipe")
        reader = os.open(Path(runtime.workdir) / "pipe", os.O_RDONLY | os.O_NONBLOCK)
        try:
            with pytest.raises(RuntimeFault, match=r"can't be written: .*no regular file"):
                await runtime.upload("pipe", b"x")
        finally:
            os.close(reader)
        with pytest.raises(RuntimeFault, match="can't be written"):
            await runtime.upload("pipe", b"x")
        with pytest.raises(RuntimeFault, match=r"can't be read: .*no regular file"):
            await runtime.download("pipe")
        with pytest.raises(RuntimeFault, match="can't be written"):
            await runtime.upload("no\0name", b"x")
        await runtime.upload("file", b"a longer text", 0o600)
        await runtime.upload("file", b"short", 0o755)
        assert await runtime.download("file") == b"short"
        assert (Path(runtime.workdir) / "file").stat().st_mode & 0o777 == 0o755
    finally:
        await runtime.stop()


class TestIsolated(RuntimeTests):
    """In namespaces of its own."""

    # Root isn't bound by a limit of processes; an ordinary user may not be allowed any namespace.
    may_lack = frozenset({"process_limit"} if os.geteuid() == 0 else {"nothing_else_is_reached"})

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        make = Runtimes(root=tmp_path, owner="tests/one", grace_s=0.3, isolates_local=True)
        return Bench(make=make, spec=RuntimeSpec())


class TestShared(RuntimeTests):
    """With the machine's own network."""

    may_lack = frozenset({"process_limit", "nothing_else_is_reached"})

    @pytest.fixture
    def bench(self, tmp_path: Path) -> Bench:
        make = Runtimes(root=tmp_path, owner="tests/one", grace_s=0.3, isolates_local=True)
        return Bench(make=make, spec=RuntimeSpec(network="egress"))


async def test_sessions_share_what_node_compiled(tmp_path: Path) -> None:
    """A node program that asks for a compile cache finds the worker's in its temporary directory; what ends with the session is the link."""
    runtimes = Runtimes(root=tmp_path / "r", owner="tests/one", isolates_local=False, cache_dir=tmp_path / "cache")
    for name in ("one", "two"):
        runtime = runtimes(RuntimeSpec(), name)
        await runtime.start()
        script = f'echo {name} >>"$TMPDIR/node-compile-cache/kept"; cat "$TMPDIR/node-compile-cache/kept"'
        result = await runtime.exec(["/bin/sh", "-c", script], timeout_s=20)
        await runtime.stop()
    assert result.stdout == b"one\ntwo\n"
    assert (tmp_path / "cache" / "compiled").stat().st_mode & 0o777 == 0o700
    assert list((tmp_path / "r").iterdir()) == []
    await runtimes.close()
