"""One harness, several wires, two ways of capture: what a plan says for each."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

import harnesses
from harnesses.errors import HarnessError, OptionError
from harnesses.forward import NO_KEY
from harnesses.plan import LaunchPlan

SECRET = "sec-ret"
PROXY = harnesses.ForwardProxy(address="http://proxy:99", ca_pem=b"OURS\n", system_pem=b"THEIRS\n")
PAIRS = [(adapter.name, wire) for adapter in harnesses.list_harnesses() for wire in adapter.wires]
FORWARD = [
    (adapter.name, wire.dialect)
    for adapter in harnesses.list_harnesses()
    for wire in adapter.wires.values()
    if wire.forward
]


def plan(name: str, forward: harnesses.ForwardProxy | None = None, **options: object) -> LaunchPlan:
    adapter = harnesses.get(name)
    if "wire" not in adapter.options:
        options.pop("wire", None)
    return harnesses.launch_plan(
        adapter,
        options,
        instruction="do it",
        urls=harnesses.base_urls("http://proxy:80", SECRET),
        secret=SECRET,
        model="the-policy",
        home="/h",
        workdir="/w",
        executable="/bin/cli",
        forward=forward,
    )


def everything(made: LaunchPlan) -> str:
    return json.dumps([made.argv, dict(made.env), {path: content.decode() for path, content in made.files.items()}])


@pytest.mark.parametrize(("name", "wire"), PAIRS)
def test_each_wire_has_a_plan(name: str, wire: str) -> None:
    """The base URL is the wire's, with the secret in it; nothing is left unfilled, and no argument shows the secret."""
    made = plan(name, wire=wire)
    text = everything(made)
    assert f"http://proxy:80/s/{SECRET}" in text
    for left in ("{base_url", "{provider", "{api}", "{sdk}", "{model", "{mcp_servers}", "{secret}"):
        assert left not in text
    assert not any(SECRET in argument for argument in made.argv)


@pytest.mark.parametrize(("name", "wire"), FORWARD)
def test_forward_mode_leaves_the_vendor_alone(name: str, wire: str) -> None:
    """No address of ours but the proxy's, no key of ours at all; every place that a client reads its CA from names ours."""
    made = plan(name, PROXY, wire=wire, capture="forward")
    text = everything(made)
    assert "proxy:80" not in text
    assert text.count(SECRET) == 2  # HTTPS_PROXY, in its two spellings
    assert NO_KEY in text
    assert made.env["HTTPS_PROXY"] == made.env["https_proxy"] == f"http://{SECRET}:x@proxy:99"
    assert made.files[made.env["NODE_EXTRA_CA_CERTS"]] == made.files[made.env["CODEX_CA_CERTIFICATE"]] == b"OURS\n"
    assert made.files[made.env["SSL_CERT_FILE"]] == made.files[made.env["REQUESTS_CA_BUNDLE"]] == b"THEIRS\nOURS\n"


def test_vendor_urls_are_not_set() -> None:
    """What names a base URL isn't there at all in forward mode."""
    assert "ANTHROPIC_BASE_URL" not in plan("claude_code", PROXY, capture="forward").env
    assert "GOOGLE_GEMINI_BASE_URL" not in plan("gemini_cli", PROXY, capture="forward").env
    config = tomllib.loads(plan("codex", PROXY, capture="forward").files["/h/.codex/config.toml"].decode())
    assert config["model_provider"] == "openai"
    assert "model_providers" not in config
    pi = json.loads(plan("pi", PROXY, wire="anthropic", capture="forward").files["/h/.pi/agent/models.json"])
    assert "baseUrl" not in pi["providers"]["anthropic"]
    assert pi["providers"]["anthropic"]["compat"] == {"supportsMessageThreads": False}


def test_any_command_in_forward_mode() -> None:
    """A closed program of one's own goes through the proxy too, and gets no base URL."""
    made = plan("shell", PROXY, command="run {instruction} {base_url_anthropic}", capture="forward")
    assert "OPENAI_BASE_URL" not in made.env
    assert made.env["HTTPS_PROXY"].endswith("@proxy:99")
    assert made.env["POLYNYA_BASE_URL_ANTHROPIC"] == ""


def test_what_can_not_be() -> None:
    """Unknown wires, a wire without forward mode, and forward mode without a listener are refused, with the field."""
    with pytest.raises(OptionError, match=r"harness\.options\.wire: must be one of .*google, not 'morse'"):
        plan("pi", wire="morse")
    with pytest.raises(
        OptionError, match=r"harness\.options\.capture: `opencode` has no forward mode on the wire openai_chat"
    ):
        plan("opencode", PROXY, capture="forward")
    with pytest.raises(HarnessError, match="no forward listener"):
        plan("claude_code", capture="forward")


def test_announced() -> None:
    """A proxy's heartbeat says where its forward listener is, or nothing."""
    assert harnesses.ForwardProxy.announced({}) is None
    found = harnesses.ForwardProxy.announced({"forward": {"address": "http://p:1", "ca_pem": "PEM"}})
    assert found is not None
    assert (found.address, found.ca_pem) == ("http://p:1", b"PEM")


OWN = """
name: mine
title: My agent
dialect: openai_chat
install: {package: mine, version: 1.0.0, bin: mine}
environment: {OPENAI_BASE_URL: "{base_url}", OPENAI_API_KEY: "{secret}"}
command: ["{bin}", "{instruction}"]
"""


def test_a_directory_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One YAML file in POLYNYA_HARNESS_DIR is one more harness; a name that exists already is replaced."""
    (tmp_path / "mine.yaml").write_text(OWN)
    monkeypatch.setenv("POLYNYA_HARNESS_DIR", str(tmp_path))
    made = plan("mine")
    assert made.argv == ("/bin/cli", "do it")
    assert made.env["OPENAI_BASE_URL"] == f"http://proxy:80/s/{SECRET}/v1"
    (tmp_path / "pi.yaml").write_text(OWN.replace("name: mine", "name: pi"))
    assert harnesses.get("pi").title == "My agent"
    assert [a.name for a in harnesses.list_harnesses()] == sorted(a.name for a in harnesses.list_harnesses())
    (tmp_path / "bad.yaml").write_text("name: [")
    with pytest.raises(HarnessError, match=r"bad\.yaml: is no YAML"):
        harnesses.get("pi")
    monkeypatch.setenv("POLYNYA_HARNESS_DIR", str(tmp_path / "none"))
    with pytest.raises(HarnessError, match=r"POLYNYA_HARNESS_DIR is .*, which is no directory"):
        harnesses.get("pi")


def test_a_definition_that_is_no_text_or_no_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong with one's own file, its name stands in the error."""
    monkeypatch.setenv("POLYNYA_HARNESS_DIR", str(tmp_path))
    (tmp_path / "mine.yaml").write_bytes(b"name: \xff")
    with pytest.raises(HarnessError, match=r"mine\.yaml: is no YAML"):
        harnesses.list_harnesses()
    (tmp_path / "mine.yaml").unlink()
    (tmp_path / "mine.yaml").mkdir()
    with pytest.raises(HarnessError, match=r"mine\.yaml: can't be read"):
        harnesses.list_harnesses()
