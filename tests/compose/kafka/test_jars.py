"""Java, Maven and the jars: found, fetched once, and missed with a clear message."""

from __future__ import annotations

import multiprocessing
import stat

import pytest

from compose.kafka.errors import KafkaUnavailable
from compose.kafka.jars import default_cache_dir, find_java, resolve_jars

MAVEN = """#!/bin/sh
echo run >> {log}
for a in "$@"; do case "$a" in -DoutputDirectory=*) out="${{a#-DoutputDirectory=}}";; esac; done
mkdir -p "$out"; {sleep}
touch "$out/kafka_2.13-4.4.0.jar"
{end}
"""


def program(folder, name, text):
    """An executable script on the PATH."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def java(version):
    """A Java that says its version as real ones do, on stderr."""
    return f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n"


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A PATH with nothing but the shell's tools; the folder where a test puts programs."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    real = {"java", "mvn"}
    monkeypatch.setattr("compose.kafka.jars.shutil.which", _which_in(tmp_path / "bin", real))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def _which_in(folder, names):
    def which(name):
        found = folder / name if name in names else name
        return str(found) if (folder / name).exists() or str(name).startswith("/") else None

    return which


@pytest.fixture
def pom(tmp_path):
    """A list of artifacts."""
    path = tmp_path / "pom.xml"
    path.write_text("<project/>")
    return path


def test_missing_java_is_named(path):
    """The message says what to install, and the other way out."""
    with pytest.raises(KafkaUnavailable, match=r"(?s)no `java`.*openjdk-17.*POLYNYA_BOOTSTRAP"):
        find_java()


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.22", "16"])
def test_old_java_is_refused(path, version):
    """Kafka 4 needs 17; the message shows what was found."""
    program(path, "java", java(version))
    with pytest.raises(KafkaUnavailable, match=version.replace(".", r"\.")):
        find_java()


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.1"])
def test_newer_java_is_taken(path, version):
    """17 and later."""
    there = program(path, "java", java(version))
    assert find_java() == str(there)


def test_java_home_comes_first(path, tmp_path, monkeypatch):
    """A JAVA_HOME that leads nowhere is a mistake worth telling."""
    program(path, "java", java("17"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    monkeypatch.setattr("compose.kafka.jars.shutil.which", lambda name: None)
    with pytest.raises(KafkaUnavailable, match="JAVA_HOME points at"):
        find_java()


def test_missing_maven_is_named(path, tmp_path, pom):
    """Only when the jars aren't there yet."""
    program(path, "java", java("17"))
    with pytest.raises(KafkaUnavailable, match=r"(?s)no `mvn`.*apt-get install maven"):
        resolve_jars(tmp_path / "cache", pom=pom)


def test_jars_are_fetched_once(path, tmp_path, pom):
    """The second time nothing runs, not even a look for Maven; another list of artifacts has another place."""
    program(path, "java", java("17"))
    maven = program(path, "mvn", MAVEN.format(log=tmp_path / "log", sleep="", end=""))
    first = resolve_jars(tmp_path / "cache", pom=pom)
    assert resolve_jars(tmp_path / "cache", pom=pom) == first
    assert (tmp_path / "log").read_text().count("run") == 1
    pom.write_text("<project><!-- newer --></project>")
    assert resolve_jars(tmp_path / "cache", pom=pom) != first
    maven.unlink()
    assert (resolve_jars(tmp_path / "cache", pom=pom) / "kafka_2.13-4.4.0.jar").exists()


def test_a_failed_fetch_leaves_nothing_and_says_what_maven_said(path, tmp_path, pom):
    """A later try starts from a clean place."""
    program(path, "java", java("17"))
    program(path, "mvn", MAVEN.format(log=tmp_path / "log", sleep="", end="echo no route to host; exit 1"))
    with pytest.raises(KafkaUnavailable, match=r"(?s)exit code 1.*no route to host"):
        resolve_jars(tmp_path / "cache", pom=pom)
    assert [p.suffix for p in (tmp_path / "cache" / "kafka").iterdir()] == [".lock"]


def test_a_hanging_fetch_ends(path, tmp_path, pom):
    """After the time given the message says where to look."""
    program(path, "java", java("17"))
    program(path, "mvn", MAVEN.format(log=tmp_path / "log", sleep="exec sleep 30", end=""))
    with pytest.raises(KafkaUnavailable, match=r"didn't finish.*mirror"):
        resolve_jars(tmp_path / "cache", pom=pom, timeout_s=0.5)


def test_two_processes_fetch_once(path, tmp_path, pom):
    """The second waits for the first and finds its jars."""
    program(path, "java", java("17"))
    program(path, "mvn", MAVEN.format(log=tmp_path / "log", sleep="sleep 0.5", end=""))
    context = multiprocessing.get_context("fork")
    others = [context.Process(target=resolve_jars, args=(tmp_path / "cache",), kwargs={"pom": pom}) for _ in range(3)]
    for other in others:
        other.start()
    for other in others:
        other.join(30)
    assert [other.exitcode for other in others] == [0, 0, 0]
    assert (tmp_path / "log").read_text().count("run") == 1


def test_the_cache_can_be_put_elsewhere(monkeypatch, tmp_path):
    """`POLYNYA_CACHE` or the home directory."""
    monkeypatch.setenv("POLYNYA_CACHE", str(tmp_path))
    assert default_cache_dir() == tmp_path
    monkeypatch.delenv("POLYNYA_CACHE")
    assert default_cache_dir().parts[-2:] == (".cache", "polynya")
