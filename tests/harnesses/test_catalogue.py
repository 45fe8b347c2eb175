"""The packaged definitions."""

from __future__ import annotations

import pytest

import harnesses
from harnesses.errors import HarnessError, OptionError, UnknownHarnessError

PINS = {
    "claude_code": ("2.1.332", ("anthropic",)),
    "codex": ("0.171.0", ("openai_responses",)),
    "gemini_cli": ("0.61.0", ("google",)),
    "kimi_code": ("2.1.0", ("openai_chat", "openai_responses", "anthropic", "google")),
    "mini_swe_agent": ("2.4.6", ("openai_chat", "anthropic", "openai_responses", "google")),
    "opencode": ("1.18.33", ("openai_chat", "anthropic", "openai_responses", "google")),
    "pi": ("1.6.0", ("openai_chat", "anthropic", "openai_responses", "google")),
    "qwen_code": ("0.24.4", ("openai_chat", "openai_responses", "anthropic", "google")),
    "shell": ("1", ("openai_chat", "anthropic", "openai_responses", "google")),
}


def test_definitions_load() -> None:
    """Every packaged definition parses; the exact pins and the wires, the default one first, are these."""
    found = {adapter.name: (adapter.version, adapter.dialects) for adapter in harnesses.list_harnesses()}
    assert found == PINS


def test_unknown_name() -> None:
    """An unknown harness is named, and the known ones are listed."""
    with pytest.raises(UnknownHarnessError, match=r"harness\.name: there is no harness `pie`; known are .*pi, .*shell"):
        harnesses.get("pie")


def test_other_version() -> None:
    """Another exact version replaces the pin; ranges, tags, and versions of what isn't installed are refused."""
    adapter = harnesses.get("pi", "1.5.0")
    assert adapter.install is not None
    assert (adapter.version, adapter.install.version) == ("1.5.0", "1.5.0")
    assert harnesses.get("pi").version == "1.6.0"
    for version in ("^1.5.0", "latest", "1.5"):
        with pytest.raises(OptionError, match=r"harness\.version: must be exact"):
            harnesses.get("pi", version)
    with pytest.raises(OptionError, match=r"harness\.version: the harness `shell` installs nothing"):
        harnesses.get("shell", "2.0.0")


def test_validate() -> None:
    """What a task file's reader calls: defaults come back, a missing or unquotable command is refused with its path."""
    assert harnesses.validate("pi", {})["max_tokens"] == 32000
    with pytest.raises(OptionError, match=r"^harness\.options\.command: the harness `shell` needs this option"):
        harnesses.validate("shell", {})
    with pytest.raises(HarnessError, match=r"^harness\.options\.command: \{instruction\} stands inside single quotes"):
        harnesses.validate("shell", {"command": "echo '{instruction}'"})
