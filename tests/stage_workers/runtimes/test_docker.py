"""Runtime `docker` on a real engine: what every runtime must do, and what only a container can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import docker
import pytest

from schemas.task import RuntimeSpec
from stage_workers.runtimes import RuntimeFault, probes
from stage_workers.runtimes.checks import Bench
from stage_workers.runtimes.docker import DockerRuntime, Engine, Orphan, list_orphans, reap_containers
from stage_workers.runtimes.factory import Runtimes
from stage_workers.runtimes.network import NetworkSpace
from tests.stage_workers.runtimes.base import RuntimeTests
from tests.stage_workers.runtimes.engine import IMAGE

# The first test of all also waits for the engine, and for its image where none is cached yet.
pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]
SPEC = RuntimeSpec(kind="docker", image=IMAGE)


@pytest.fixture
async def make(docker_engine: str, tmp_path: Path) -> AsyncIterator[Runtimes]:
    runtimes = Runtimes(
        root=tmp_path / "runtimes",
        owner="tests/one",
        grace_s=0.3,
        cache_dir=tmp_path / "cache",
        docker=Engine(docker_engine),
    )
    yield runtimes
    await runtimes.close()


@pytest.fixture
async def runtime(make: Runtimes) -> AsyncIterator[DockerRuntime]:
    place = make(SPEC.model_copy(update={"cpus": 0.5, "memory_mb": 256, "pids": 100}), "s1.1.1")
    assert isinstance(place, DockerRuntime)
    await place.start()
    yield place
    await place.stop()


class TestDocker(RuntimeTests):
    @pytest.fixture
    def bench(self, make: Runtimes) -> Bench:
        return Bench(make=make, spec=SPEC)


async def test_worker_that_may_not_enter(
    make: Runtimes, runtime: DockerRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that isn't root has a container of a moment open the socket: the program reaches it, and that container is gone."""

    def refuse(_pid: int) -> NetworkSpace:
        raise RuntimeFault("permission denied")

    monkeypatch.setattr(NetworkSpace, "of", refuse)
    async with probes.answering(await runtime.listen(), b"model") as address:
        host, _, port = address.rpartition("/")[2].rpartition(":")
        result = await runtime.exec(["/bin/sh", "-c", probes.CONNECT, "sh", host, port], timeout_s=60)
        assert result.stdout.strip() == b"model"
    (left,) = await list_orphans(make.docker, "tests")
    assert left.container_id == runtime.container_id


async def test_container_is_confined(runtime: DockerRuntime, make: Runtimes) -> None:
    """No capability, no new privileges, no network, the task's limits; harnesses are there to read, and nothing secret is told."""
    result = await runtime.exec(
        [
            "/bin/sh",
            "-c",
            "grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; ulimit -c; touch $CACHE/harnesses/x || echo ro",
        ],
        timeout_s=60,
        env={"CACHE": str(make.cache_dir), "KEY": "very-secret"},
    )
    said = result.stdout.decode().split()
    assert said == [
        *("CapEff:", "0000000000000000", "CapBnd:", "0000000000000000", "NoNewPrivs:", "1", "0", "ro"),
    ]
    details = await make.docker.call("look", lambda client: client.inspect_container(runtime.container_id))
    host = details["HostConfig"]
    assert (host["NetworkMode"], host["NanoCpus"], host["PidsLimit"]) == ("none", 500_000_000, 100)
    assert host["Memory"] == host["MemorySwap"] == 256 * 1024 * 1024
    assert "very-secret" not in str(details)


async def test_missing_image_says_what_to_type(make: Runtimes) -> None:
    """An image that isn't there is a fault that names the command; a name that is none, and a missing one, likewise."""
    with pytest.raises(RuntimeFault, match="docker pull no/such:image"):
        await make(RuntimeSpec(kind="docker", image="no/such:image"), "s1.1.1").start()
    with pytest.raises(RuntimeFault, match=r"runtime\.image: runtime `docker` needs an image"):
        make(RuntimeSpec(kind="docker"), "s1.1.1")
    with pytest.raises(RuntimeFault, match=r"runtime\.options\.colour: .* knows: workdir, home"):
        make(SPEC.model_copy(update={"options": {"colour": "red"}}), "s1.1.1")


async def test_no_engine_says_what_to_type(tmp_path: Path) -> None:
    """Without an engine the fault names the place where it was looked for, and what to do."""
    make = Runtimes(root=tmp_path, owner="tests/one", docker=Engine(f"unix://{tmp_path}/none.sock"))
    with pytest.raises(RuntimeFault, match=r"none\.sock .*systemctl start docker"):
        await make(SPEC, "s1.1.1").start()
    await make.close()
    assert await reap_containers("tests", engine=Engine(f"unix://{tmp_path}/none.sock")) == 0


async def test_orphans_are_found_and_removed(make: Runtimes, runtime: DockerRuntime, docker_engine: str) -> None:
    """A dead incarnation's containers are removed; those of a living one, and of another worker, stay."""
    dead = Runtimes(root=make.root, owner="tests/dead", docker=make.docker)(SPEC, "s2.1.1")
    other = Runtimes(root=make.root, owner="others/dead", docker=make.docker)(SPEC, "s3.1.1")
    await asyncio.gather(dead.start(), other.start())

    def lives(orphan: Orphan) -> bool:
        return orphan.incarnation == "one"

    try:
        (found,) = await list_orphans(make.docker, "tests", is_alive=lives)
        assert (found.runtime, found.incarnation) == ("s2.1.1", "dead")
        assert await reap_containers("tests", engine=Engine(docker_engine), is_alive=lives) == 1
        assert await list_orphans(make.docker, "tests", is_alive=lives) == []
        with pytest.raises(RuntimeFault, match="the container is gone"):
            await dead.exec(["true"], timeout_s=20)
        assert (await other.exec(["true"], timeout_s=60)).succeeded
        assert (await runtime.exec(["true"], timeout_s=60)).succeeded
    finally:
        await dead.stop()
        await other.stop()


async def test_ordinary_user(make: Runtimes) -> None:
    """Programs may run as another user, who owns the working directory, HOME and what is uploaded."""
    place = make(SPEC.model_copy(update={"options": {"user": "1234:1234", "workdir": "/srv/repo"}}), "s1.1.1")
    await place.start()
    try:
        await place.upload("file", b"x", 0o600)
        result = await place.exec(
            ["/bin/sh", "-c", "id -u; pwd; cat file; touch $HOME/x made && echo ok"], timeout_s=60
        )
        assert result.stdout == b"1234\n/srv/repo\nxok\n"
    finally:
        await place.stop()


async def test_stopped_container_is_gone(make: Runtimes, docker_engine: str) -> None:
    """After stop the engine knows no such container, and another call on the runtime says so."""
    place = make(SPEC, "s1.1.1")
    assert isinstance(place, DockerRuntime)
    await place.start()
    container = place.container_id
    await place.stop()
    with pytest.raises(docker.errors.NotFound):
        await make.docker.call("look", lambda client: client.inspect_container(container))
    with pytest.raises(RuntimeFault, match="not started yet, or stopped"):
        await place.exec(["true"], timeout_s=20)
