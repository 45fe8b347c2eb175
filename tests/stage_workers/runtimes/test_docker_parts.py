"""What runtime `docker` is made of, without an engine: frames, how a container is made, archives, the connection's limits."""

from __future__ import annotations

import asyncio
import io
import tarfile
from pathlib import Path
from typing import Any

import docker
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.task import RuntimeSpec
from stage_workers.runtimes import RuntimeFault
from stage_workers.runtimes.base import parse_options
from stage_workers.runtimes.docker import doorway, files, reap_containers
from stage_workers.runtimes.docker.engine import Engine
from stage_workers.runtimes.docker.options import DockerOptions, container_name, host_config
from stage_workers.runtimes.docker.stream import Frames, Streams


@given(
    pieces=st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=8),
    cut=st.integers(min_value=1, max_value=17),
)
def test_frames_wherever_they_are_cut(pieces: list[tuple[int, bytes]], cut: int) -> None:
    """Both streams come out whole, however the connection cuts the frames."""
    wire = b"".join(bytes([which, 0, 0, 0]) + len(data).to_bytes(4, "big") + data for which, data in pieces)
    found = {"stdout": b"", "stderr": b""}

    def take(stream: str, data: bytes) -> None:
        found[stream] += data

    frames = Frames(take)
    for start in range(0, len(wire), cut):
        frames.feed(wire[start : start + cut])
    assert found["stdout"] == b"".join(data for which, data in pieces if which == 1)
    assert found["stderr"] == b"".join(data for which, data in pieces if which == 2)


def made(**fields: Any) -> dict[str, Any]:
    """The engine's HostConfig for a task's runtime."""
    spec = RuntimeSpec(kind="docker", image="x", **fields)
    client = docker.APIClient(version="1.41")
    try:
        config: dict[str, Any] = host_config(client, spec, parse_options(DockerOptions, spec), [(Path("/a"), "/b")])
    finally:
        client.close()
    return config


def test_a_container_is_confined_unless_told_otherwise() -> None:
    """No network, no capability, a bound of processes, binds that can't be written; `egress` gives the engine's bridge."""
    plain = made()
    assert (plain["NetworkMode"], plain["CapDrop"], plain["PidsLimit"]) == ("none", ["ALL"], 4096)
    assert plain["SecurityOpt"] == ["no-new-privileges"]
    assert plain["Binds"] == ["/a:/b:ro"]
    assert not plain.get("CapAdd")
    assert not plain.get("Privileged")
    options = {"cap_add": ["CHOWN"], "gpus": -1, "runtime": "runsc", "shm_mb": 128}
    wide = made(network="egress", memory_mb=64, cpus=1.5, pids=9, options=options)
    assert (wide["NetworkMode"], wide["CapAdd"], wide["Runtime"]) == ("bridge", ["CHOWN"], "runsc")
    assert (wide["Memory"], wide["MemorySwap"]) == (64 * 1024 * 1024, 64 * 1024 * 1024)
    assert (wide["NanoCpus"], wide["PidsLimit"], wide["ShmSize"]) == (1_500_000_000, 9, 128 * 1024 * 1024)
    assert wide["DeviceRequests"][0]["Count"] == -1


def test_a_door_shows_nothing_of_this_machine_but_an_interpreter(tmp_path: Path) -> None:
    """The image's own programs run beside the helper: they see no home, no secret, no engine's socket, and aren't asked for health."""
    asked: dict[str, Any] = {}

    class Client:
        def create_host_config(self, **fields: Any) -> dict[str, Any]:
            return fields

        def create_container(self, image: str, command: list[str], **fields: Any) -> dict[str, str]:
            asked.update(fields, image=image, command=command)
            return {"Id": "helper"}

    assert doorway._create(Client(), "any", "sandbox", str(tmp_path / "door"), {"a": "b"}) == "helper"
    config, binds = asked["host_config"], asked["host_config"]["binds"]
    assert (config["network_mode"], config["cap_drop"]) == ("container:sandbox", ["ALL"])
    assert all(bind == {"bind": f"/host{place}", "mode": "ro"} for place, bind in binds.items())
    assert {"/usr", str(tmp_path)} <= set(binds)
    assert not {"/", "/etc", "/run", "/var", "/var/run", "/home", "/root", "/proc", str(Path.cwd())} & set(binds)
    assert asked["healthcheck"]["Test"] == ["NONE"]
    needed = [Path(argument) for argument in asked["command"] if argument.startswith("/") and argument != "/host"]
    for place in needed:
        assert any(Path(bound) in (place, *place.parents) for bound in binds), place


def test_what_lies_in_another_place_is_bound_once(tmp_path: Path) -> None:
    """No bind within a bind, none of what isn't there (the engine would make it), and never the whole machine."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    found = doorway.binds_of([tmp_path / "a", inner, tmp_path / "missing"])
    assert [place for place in found if place.startswith(str(tmp_path))] == [str(tmp_path / "a")]
    with pytest.raises(RuntimeFault, match="all of this machine"):
        doorway.binds_of([Path("/")])


async def test_a_container_that_cannot_be_ended_keeps_no_other(tmp_path: Path) -> None:
    """The reaper goes on with the next one, and counts what went."""
    removed: list[str] = []

    class Client:
        def containers(self, **_: Any) -> list[dict[str, Any]]:
            return [{"Id": name, "Labels": {}} for name in ("stuck", "other")]

        def remove_container(self, name: str, **_: Any) -> None:
            if name == "stuck":
                raise docker.errors.APIError("it is stuck")
            removed.append(name)

    engine = Engine(f"unix://{tmp_path}")
    engine._client = Client()
    try:
        assert await reap_containers("worker", engine=engine) == 1
    finally:
        engine._client = None
        await engine.close()
    assert removed == ["other"]


def test_names_that_an_engine_takes() -> None:
    """A container's name has nothing that the engine refuses, and tells the session."""
    name = container_name("0c9f.1.2 fresh/é", "worker-1@abc/0123456789abcdef")
    assert name == "polynya-01234567-0c9f.1.2-fresh--"


def test_an_uploaded_file_is_its_users() -> None:
    """The archive holds one file at its path, with its mode, owner and content."""
    with tarfile.open(fileobj=io.BytesIO(files.pack("/work/a/b.txt", b"abc", 0o600, (7, 8)))) as archive:
        (entry,) = archive.getmembers()
        assert (entry.name, entry.mode, entry.uid, entry.gid) == ("work/a/b.txt", 0o600, 7, 8)
        file = archive.extractfile(entry)
        assert file is not None
        assert file.read() == b"abc"


async def test_an_engine_that_hangs_is_a_fault(tmp_path: Path) -> None:
    """An engine that takes the connection and says nothing: the call ends at its deadline, and says so."""
    hung: list[asyncio.StreamWriter] = []
    server = await asyncio.start_unix_server(lambda _reader, writer: hung.append(writer), tmp_path / "sock")
    engine = Engine(f"unix://{tmp_path}/sock")
    try:
        with pytest.raises(RuntimeFault, match=r"a look: the Docker engine at .*sock took longer than 0 s"):
            await engine.call("a look", lambda client: client.info(), deadline_s=0.3)
    finally:
        for writer in hung:
            writer.close()
            await writer.wait_closed()
        server.close()
        await server.wait_closed()
        await engine.close()


async def test_a_refused_start_says_why(tmp_path: Path) -> None:
    """The engine's own words are in the fault when it doesn't start a program; its streams are closed."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"message":"the container is paused"}'
        writer.write(b"HTTP/1.1 409 Conflict\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(refuse, tmp_path / "sock")
    streams = await Streams.connect(f"unix://{tmp_path}/sock")
    try:
        with pytest.raises(RuntimeFault, match=r"refused to start the program \(409\): the container is paused"):
            await streams.start("abc")
    finally:
        await streams.close()
        server.close()
        await server.wait_closed()


async def test_an_engine_elsewhere_is_refused() -> None:
    """An engine behind ssh can't share this machine's network: the fault says which address is meant."""
    with pytest.raises(RuntimeFault, match=r"DOCKER_HOST is ssh://there, .* give it as unix://"):
        await Engine("ssh://there").call("a look", lambda client: client.info())
