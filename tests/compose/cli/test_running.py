"""`polynya up`: what is refused before anything starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from compose.cli import main, running
from compose.cli.running import check_ports
from compose.errors import CommandError, ExitCode
from compose.settings import StackSettings, load


@pytest.mark.parametrize("name", ["engine_port", "proxy_port", "proxy_admin_port", "forward_port"])
def test_a_port_that_is_taken_is_refused_before_anything_starts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting is named, how to see who has the port, and what to set."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("POLYNYA_STATE_DIR", str(tmp_path))
        monkeypatch.setenv(f"POLYNYA_{name.upper()}", str(port))
        error = CliRunner().invoke(main.app, ["up"]).exception
    assert isinstance(error, CommandError)
    assert error.code is ExitCode.USAGE
    assert f"{name} {port} on 127.0.0.1 can't be had: Address already in use" in str(error)
    assert f"sport = :{port}" in error.hint
    assert f"POLYNYA_{name.upper()}=0" in error.hint
    assert not list(tmp_path.iterdir())


def test_ports_that_nobody_listens_on_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """0 asks for a free one; a port of a listener that isn't started doesn't matter."""
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        port, other = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        monkeypatch.setenv("POLYNYA_PROXY_PORT", str(other))
        check_ports(load(forward=False, forward_port=port, engine="http://gpu:1", engine_port=port))


def test_a_slip_in_the_environment_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack comes up all the same: the variable may be somebody else's."""
    monkeypatch.setenv("POLYNYA_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("POLYNYA_PROXI_PORT", "8080")
    monkeypatch.setattr(running, "start_detached", lambda *_, **__: None)
    said: list[str] = []
    monkeypatch.setattr(running.err, "print", lambda line, **_: said.append(line))
    assert CliRunner().invoke(main.app, ["up", "--detach"]).exit_code == 0
    assert said == ["POLYNYA_PROXI_PORT is no setting and does nothing; did you mean POLYNYA_PROXY_PORT?"]


@pytest.mark.parametrize(("arguments", "policy_id"), [(["--policy", "second"], "second"), ([], "default")])
def test_up_says_which_policy_its_engine_serves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], policy_id: str
) -> None:
    """Sessions of another policy never get its tokens."""
    started: list[StackSettings] = []
    monkeypatch.setattr(running, "start_detached", lambda settings, **_: started.append(settings))
    done = CliRunner().invoke(main.app, ["up", "--detach", "--state-dir", str(tmp_path), *arguments])
    assert done.exit_code == 0, done.exception
    assert [settings.policy_id for settings in started] == [policy_id]
