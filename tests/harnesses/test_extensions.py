"""MCP servers and skills that a task registers."""

from __future__ import annotations

import json
import tomllib

import pytest

import harnesses
from harnesses.errors import OptionError
from harnesses.plan import LaunchPlan

SERVERS = {
    "tides": {"command": "python3", "args": ["{workdir}/server.py", 'a "b"'], "env": {"HARBOUR": "Jökulsárlón"}},
    "charts": {"url": "http://charts.test/mcp", "headers": {"x-key": "k"}},
}


def plan(name: str, **options: object) -> LaunchPlan:
    return harnesses.launch_plan(
        harnesses.get(name),
        options,
        instruction="do it",
        urls=harnesses.base_urls("http://proxy:80", "s"),
        secret="s",
        model="m",
        home="/h",
        workdir="/w",
    )


def tree(made: LaunchPlan, path: str) -> dict[str, object]:
    return json.loads(made.files[path])


def test_claude_code() -> None:
    """A file of its own, named on the command line, and no other servers than those."""
    made = plan("claude_code", mcp_servers=SERVERS)
    assert "--strict-mcp-config" in made.argv
    assert made.argv[made.argv.index("--mcp-config") + 1] == "/h/.claude/polynya-mcp.json"
    stdio = {
        "type": "stdio",
        "command": "python3",
        "args": ["/w/server.py", 'a "b"'],
        "env": {"HARBOUR": "Jökulsárlón"},
    }
    http = {"type": "http", "url": "http://charts.test/mcp", "headers": {"x-key": "k"}}
    assert tree(made, "/h/.claude/polynya-mcp.json") == {"mcpServers": {"tides": stdio, "charts": http}}
    assert not plan("claude_code").files


def test_codex() -> None:
    """TOML, whatever the texts hold."""
    config = tomllib.loads(plan("codex", mcp_servers=SERVERS).files["/h/.codex/config.toml"].decode())
    assert config["mcp_servers"] == {
        "tides": {"command": "python3", "args": ["/w/server.py", 'a "b"'], "env": {"HARBOUR": "Jökulsárlón"}},
        "charts": {"url": "http://charts.test/mcp", "http_headers": {"x-key": "k"}},
    }
    assert "mcp_servers" not in tomllib.loads(plan("codex").files["/h/.codex/config.toml"].decode())


@pytest.mark.parametrize(
    ("name", "path"), [("gemini_cli", "/h/.gemini/settings.json"), ("qwen_code", "/h/.qwen/settings.json")]
)
def test_settings_files(name: str, path: str) -> None:
    """Gemini CLI and its relative have them in their settings, trusted, so that no call asks for leave."""
    servers = tree(plan(name, mcp_servers=SERVERS), path)["mcpServers"]
    assert servers == {
        "tides": {**SERVERS["tides"], "args": ["/w/server.py", 'a "b"'], "trust": True},
        "charts": {"httpUrl": "http://charts.test/mcp", "headers": {"x-key": "k"}, "trust": True},
    }


def test_opencode() -> None:
    """Its command is one list."""
    servers = tree(plan("opencode", mcp_servers=SERVERS), "/h/.config/opencode/opencode.json")["mcp"]
    assert isinstance(servers, dict)
    assert servers["tides"]["command"] == ["python3", "/w/server.py", 'a "b"']
    assert servers["charts"]["type"] == "remote"


def test_skills_are_files_of_the_harness() -> None:
    """A text is a skill's SKILL.md; more files keep their relative paths; braces in them are theirs."""
    skills = {"pilot": "Ask {model}.", "charts": {"SKILL.md": "s", "data/a.txt": "b"}}
    made = plan("claude_code", skills=skills)
    assert dict(made.files) == {
        "/h/.claude/skills/pilot/SKILL.md": b"Ask {model}.",
        "/h/.claude/skills/charts/SKILL.md": b"s",
        "/h/.claude/skills/charts/data/a.txt": b"b",
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mcp_servers": {"a b": {"command": "x"}}}, "mcp_servers.a b: is no name"),
        ({"mcp_servers": {"a": {"command": "x", "url": "y"}}}, "mcp_servers.a: must be a mapping with either"),
        ({"mcp_servers": {"a": {}}}, "mcp_servers.a: must be a mapping with either"),
        ({"mcp_servers": {"a": {"command": ""}}}, "mcp_servers.a.command: must be a text"),
        ({"mcp_servers": {"a": {"command": "x", "args": "y"}}}, "mcp_servers.a.args: must be a list"),
        ({"mcp_servers": {"a": {"command": "x", "env": {"A": 1}}}}, "mcp_servers.a.env.A: must be a text"),
        ({"mcp_servers": {"a": {"url": "x", "args": []}}}, "mcp_servers.a.args: is no field"),
        ({"mcp_servers": ["a"]}, "mcp_servers: must be a mapping by name"),
        ({"skills": {"a": {"other.md": "x"}}}, "skills.a: needs a file SKILL.md"),
        ({"skills": {"a": {"SKILL.md": "x", "../b": "y"}}}, "skills.a.../b: must be a relative path"),
        ({"skills": {"a": {"SKILL.md": "x", ".": "y"}}}, "skills.a..: must be a relative path"),
        ({"skills": {"a": {"SKILL.md": "x", "b\0": "y"}}}, "skills.a.b\0: must be a relative path"),
        ({"skills": {"a": 3}}, "skills.a: must be a mapping of texts"),
    ],
)
def test_mistakes_are_named(options: dict[str, object], message: str) -> None:
    """Each error names the field that is wrong."""
    with pytest.raises(OptionError) as caught:
        plan("claude_code", **options)
    assert str(caught.value).startswith(f"harness.options.{message}")


def test_harnesses_without_them_say_so() -> None:
    """Pi knows no MCP servers: the option isn't there."""
    with pytest.raises(OptionError, match=r"harness\.options\.mcp_servers: the harness `pi` has no such option"):
        plan("pi", mcp_servers=SERVERS)
