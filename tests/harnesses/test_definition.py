"""Parsing a definition."""

from __future__ import annotations

import pytest

from harnesses.definition import parse_adapter, parse_version
from harnesses.errors import HarnessError

GOOD = {
    "name": "x",
    "title": "X",
    "dialect": "anthropic",
    "install": {"package": "x", "version": "1.2.3", "bin": "x", "node_min": "22.19"},
    "files": [{"path": "{home}/a.json", "json": {"m": "{model}"}}],
    "environment": {"N": 1},
    "command": ["{bin}", {"when": "tools", "parts": ["--tools", "{tools}"]}],
    "options": {"tools": {"kind": "string"}},
    "verdict": {"event": {"type": "result"}, "fails_when": {"is_error": True}, "error": "result"},
}


def test_good_definition() -> None:
    """Everything has its place; the version is the package's."""
    adapter = parse_adapter(GOOD, "x.yaml")
    assert adapter.version == "1.2.3"
    assert adapter.install is not None
    assert adapter.install.node_min == (22, 19, 0)
    assert [argument.when for argument in adapter.command] == [None, "tools"]
    assert adapter.environment == {"N": "1"}
    assert adapter.verdict is not None
    assert adapter.verdict.fails_when == {"is_error": (True,)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "unknown fields"),
        ({"title": None}, "x.yaml.title"),
        ({"dialect": "morse"}, "x.yaml.dialect"),
        ({"url_form": "header"}, "x.yaml.url_form"),
        ({"install": {"package": "x"}}, "x.yaml.install"),
        ({"install": {"package": "x", "version": "1.0.0", "bin": "x", "node_min": "new"}}, "not a version"),
        ({"files": [{"path": "/etc/passwd", "text": ""}]}, r"files\[0\]\.path"),
        ({"command": [{"when": ["tools"], "parts": ["x"]}]}, r"command\[0\]\.when: \['tools'\] is none"),
        ({"files": [{"path": "{home}/a", "text": "", "when": ["tools"]}]}, r"files\[0\]\.when: \['tools'\] is none"),
        ({"files": [{"path": "{home}/a"}]}, "exactly one of text, json and toml"),
        ({"command": [{"when": "nothing", "parts": []}]}, r"command\[0\]\.when"),
        ({"command": "x"}, "must be a list"),
        ({"options": []}, "must be a mapping"),
        ({"verdict": {"event": {}}}, "x.yaml.verdict"),
        (
            {"command": ["{bin}", "{instrution}"]},
            r"x.yaml.command\[1\]: .*\{instrution\}; did you mean \{instruction\}\?",
        ),
        ({"environment": {"N": "{nothing_like_it}"}}, r"x.yaml.environment: .*known are base_url, "),
        ({"files": [{"path": "{home}/a", "json": {"{modell}": 1}}]}, r"files\[0\]\.json: .*\{model\}"),
        ({"wires": {"anthropic": {"set": {"a": ["{b}"]}}}}, r"wires.anthropic.set: "),
        ({"mcp": {"stdio": {"url": "{url}"}}}, r"mcp.stdio: .*\{url\}"),
    ],
)
def test_bad_definitions_name_the_field(change: dict[str, object], message: str) -> None:
    """A definition with something wrong is refused, with the place."""
    with pytest.raises(HarnessError, match=message):
        parse_adapter({**GOOD, **change}, "x.yaml")


def test_a_file_of_text_may_hold_any_braces() -> None:
    """It may be a program, whose braces are its own; names that are known there are filled all the same."""
    text = 'print(f"{answer}", "{model}")'
    adapter = parse_adapter({**GOOD, "files": [{"path": "{home}/a.py", "text": text}]}, "x.yaml")
    assert adapter.files[0].text == text


def test_versions() -> None:
    """Versions as node prints them and as people write them."""
    assert parse_version("v22.19.3\n") == (22, 19, 3)
    assert parse_version("22") == (22, 0, 0)
    assert parse_version("22.1.0-rc.1") == (22, 1, 0)
