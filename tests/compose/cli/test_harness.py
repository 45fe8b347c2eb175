"""`polynya harness`, as a person types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import harnesses
from compose.cli import harness as commands
from compose.errors import CommandError, ExitCode
from harnesses.errors import RegistryUnreachableError
from harnesses.updates import Update

run = CliRunner()


def test_list_names_wires_and_forward_mode() -> None:
    """One row per harness, the default wire first."""
    rows = {row["name"]: row for row in json.loads(run.invoke(commands.app, ["list", "--json"]).stdout)}
    assert rows["qwen_code"]["wires"] == ["openai_chat", "openai_responses", "anthropic", "google"]
    assert rows["shell"]["installed"] is True
    assert rows["claude_code"]["forward"] is True
    assert "kimi_code" in run.invoke(commands.app, ["list"]).stdout


def test_show_tells_options_and_their_defaults() -> None:
    """What a task file may say."""
    said = run.invoke(commands.app, ["show", "opencode"]).stdout
    assert "options.wire: one of openai_chat, anthropic, openai_responses, google" in said
    assert "forward mode: anthropic, openai_responses, google" in said
    assert "package: opencode-ai 1.18.33 (npm)" in said


def test_unknown_names_are_usage_errors() -> None:
    """Every command says which names there are."""
    for arguments in (["show", "pie"], ["install", "pie"], ["try", "pie"], ["record", "pie"], ["check-updates", "pie"]):
        error = run.invoke(commands.app, arguments).exception
        assert isinstance(error, CommandError), arguments
        assert error.code is ExitCode.USAGE
        assert "known are" in str(error)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pi", "--wire", "morse"], "harness.options.wire: must be one of"),
        (["claude_code", "--wire", "google"], "harness.options.wire: the harness `claude_code` has no such option"),
        (["pi", "--options", "[1]"], "--options must be a JSON object"),
        (["pi", "--options", "{"], "--options is no JSON"),
        (["pi", "--options", '{"speed": 1}'], "harness.options.speed"),
        (["pi", "--capture", "sideways"], "harness.options.capture"),
    ],
)
def test_try_checks_its_options_before_it_opens_anything(arguments: list[str], said: str) -> None:
    """Mistakes end with a usage error, without a stack."""
    error = run.invoke(commands.app, ["try", *arguments]).exception
    assert isinstance(error, CommandError)
    assert error.code is ExitCode.USAGE
    assert said in str(error)


def test_try_without_a_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There must be a stack to try it on."""
    monkeypatch.setenv("POLYNYA_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("POLYNYA_BOOTSTRAP", raising=False)
    error = run.invoke(commands.app, ["try", "pi"]).exception
    assert isinstance(error, CommandError)
    assert error.code is ExitCode.DEPENDENCY_DOWN


def test_install_reports_every_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that fails doesn't stop the others; the error names each, and that the registry is away."""

    def ensure(adapter: harnesses.Adapter, **_: object) -> harnesses.Installed:
        if adapter.name in {"pi", "codex"}:
            raise RegistryUnreachableError("the npm registry can't be reached")
        return harnesses.Installed()

    monkeypatch.setattr(commands, "ensure_installed", ensure)
    result = run.invoke(commands.app, ["install", "pi", "codex", "opencode", "shell"])
    assert isinstance(result.exception, CommandError)
    assert result.exception.code is ExitCode.DEPENDENCY_DOWN
    assert str(result.exception).splitlines() == [
        "pi: the npm registry can't be reached",
        "codex: the npm registry can't be reached",
    ]
    assert "opencode 1.18.33: ready" in result.stdout
    assert "shell: nothing to install" in result.stdout


def test_check_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is newer is marked; a registry that is away is an error with the harness' name, beside what is known."""

    def newest(adapter: harnesses.Adapter) -> Update | None:
        if adapter.name == "codex":
            raise RegistryUnreachableError("the npm registry can't be reached")
        return Update(name=adapter.name, package="p", pinned="1.0.0", newest="1.0.1")

    monkeypatch.setattr("harnesses.updates.newest", newest)
    (row,) = json.loads(run.invoke(commands.app, ["check-updates", "pi", "--json"]).stdout)
    assert row == {"name": "pi", "package": "p", "pinned": "1.0.0", "newest": "1.0.1", "is_newer": True}
    result = run.invoke(commands.app, ["check-updates", "pi", "codex"])
    assert isinstance(result.exception, CommandError)
    assert result.exception.code is ExitCode.DEPENDENCY_DOWN
    assert "codex: the npm registry can't be reached" in str(result.exception)
    assert "1.0.1" in result.stdout
