"""Runtime `apptainer`: on a stand-in that checks its arguments and runs programs in namespaces, and on the real one where it is."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from schemas.task import RuntimeSpec
from stage_workers.runtimes import RuntimeFault
from stage_workers.runtimes.apptainer import ApptainerRuntime
from stage_workers.runtimes.checks import Bench
from stage_workers.runtimes.factory import Runtimes
from stage_workers.runtimes.instances import reap_instances
from tests.stage_workers.runtimes.base import RuntimeTests

REAL = shutil.which("apptainer")
IMAGE_VARIABLE = "POLYNYA_TEST_APPTAINER_IMAGE"
STAND_IN = Path(__file__).with_name("stand_in_apptainer.py")


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in's directory, first on the PATH; `image.sif` in it is an image."""
    place = tmp_path / "bin"
    place.mkdir()
    program = place / "apptainer"
    program.write_text(f"#!{sys.executable} -IS\n{STAND_IN.read_text()}")
    program.chmod(0o755)
    (place / "image.sif").touch()
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    return place


@pytest.fixture
def make(tmp_path: Path) -> Runtimes:
    return Runtimes(root=tmp_path / "runtimes", owner="tests/one", grace_s=0.3, cache_dir=tmp_path / "cache")


def spec(stand_in: Path, **fields: object) -> RuntimeSpec:
    return RuntimeSpec(kind="apptainer", image=str(stand_in / "image.sif"), **fields)


class TestStandIn(RuntimeTests):
    # It limits no processes: that is a cgroup's work, of which only the flag is checked.
    may_lack = frozenset({"process_limit"})

    @pytest.fixture
    def bench(self, stand_in: Path, make: Runtimes) -> Bench:
        lacks = {"process_limit": "the stand-in limits no processes"}
        return Bench(make=make, spec=spec(stand_in), lacks=lacks)


@pytest.mark.skipif(
    REAL is None or IMAGE_VARIABLE not in os.environ, reason=f"no apptainer here, or no image in {IMAGE_VARIABLE}"
)
class TestReal(RuntimeTests):
    may_lack = frozenset({"process_limit", "memory_limit"})

    @pytest.fixture
    def bench(self, make: Runtimes) -> Bench:
        return Bench(make=make, spec=RuntimeSpec(kind="apptainer", image=os.environ[IMAGE_VARIABLE]))


def test_flags(stand_in: Path, make: Runtimes) -> None:
    """The task's limits and network become apptainer's flags; harnesses are bound read-only."""
    confined = make(spec(stand_in, cpus=1.5, memory_mb=512, pids=64), "s1.1.1")
    assert isinstance(confined, ApptainerRuntime)
    text = " ".join(confined.start_flags())
    assert text.startswith("--containall --no-privs --home ")
    for part in (
        "--net --network none",
        "--memory 512M --memory-swap 512M",
        "--cpus 1.5",
        "--pids-limit 64",
        "--writable-tmpfs",
        f"{make.cache_dir}/harnesses:{make.cache_dir}/harnesses:ro",
        "/work:/work",
    ):
        assert part in text
    options = {"writable": "overlay", "workdir": "/testbed", "nvidia": True}
    open_one = make(spec(stand_in, network="egress", options=options), "s1.1.1")
    assert isinstance(open_one, ApptainerRuntime)
    text = " ".join(open_one.start_flags())
    assert "--net" not in text
    assert "/overlay" in text
    assert "--nv" in text
    assert "/work:/work" not in text
    assert open_one.workdir == "/testbed"


async def test_secrets_are_no_arguments(stand_in: Path, make: Runtimes) -> None:
    """A variable's value reaches the program, but no command line of this machine."""
    place = make(spec(stand_in), "s1.1.1")
    await place.start()
    try:
        seen = []

        def look(_stream: str, _data: bytes) -> None:
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    try:
                        seen.append((entry / "cmdline").read_bytes())
                    except OSError:
                        continue

        argv = ["/bin/sh", "-c", 'echo "$KEY"; sleep 0.3']
        result = await place.exec(argv, timeout_s=30, env={"KEY": "very-secret 'quoted'"}, on_output=look)
        assert result.stdout == b"very-secret 'quoted'\n"
        assert any(b"instance://" in line for line in seen)
        assert not any(b"very-secret" in line for line in seen)
    finally:
        await place.stop()


async def test_orphans_are_stopped(stand_in: Path, make: Runtimes) -> None:
    """A worker's instances are found by their names and stopped; another worker's stay."""
    mine = make(spec(stand_in), "s1.1.1")
    others = Runtimes(root=make.root, owner="others/one")(spec(stand_in), "s2.1.1")
    await mine.start()
    await others.start()
    try:
        assert await reap_instances("tests") == 1
        assert await reap_instances("tests") == 0
        assert not (await mine.exec(["true"], timeout_s=20)).succeeded
        assert (await others.exec(["true"], timeout_s=20)).succeeded
    finally:
        await mine.stop()
        await others.stop()


async def test_missing_things_say_what_to_type(stand_in: Path, make: Runtimes, monkeypatch: pytest.MonkeyPatch) -> None:
    """No image, an image that isn't there, an option that doesn't exist, and no apptainer: each fault says what to do."""
    with pytest.raises(RuntimeFault, match=r"runtime\.image: runtime `apptainer` needs an image"):
        make(RuntimeSpec(kind="apptainer"), "s1.1.1")
    with pytest.raises(RuntimeFault, match=r"runtime\.options\.colour: .* knows: workdir, home"):
        make(spec(stand_in, options={"colour": "red"}), "s1.1.1")
    with pytest.raises(RuntimeFault, match=r"make it: apptainer pull /no/such\.sif"):
        await make(RuntimeSpec(kind="apptainer", image="/no/such.sif"), "s1.1.1").start()
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeFault, match="apptainer is not on the PATH; install it"):
        await make(spec(stand_in), "s1.1.1").start()


async def test_without_apptainer_nothing_is_said_of_instances(
    stand_in: Path, make: Runtimes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None was ever started, so none has to be stopped; the fault alone says what is missing."""
    monkeypatch.setenv("PATH", "/nowhere")
    with capture_logs() as logs, pytest.raises(RuntimeFault, match="not on the PATH"):
        await make(spec(stand_in), "s1.1.1").start()
    assert logs == []
