"""The ledger of what harnesses received."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos import ledger, policy
from tests.chaos.ledger import Received

NONCE = "nonce-" + "a" * 32
OTHER = "nonce-" + "b" * 32


def test_both_accounts_are_read(tmp_path: Path) -> None:
    """An agent's journal gives ids and nonces, the engine's ledger what came back; a torn line is left out."""
    journals = tmp_path / "journals"
    journals.mkdir()
    ledger.append(journals / "1", {"id": "chatcmpl-c1", "text": f"Step 0, {NONCE}."})
    with (journals / "1").open("a") as torn:
        torn.write('{"id": "chatcmpl-c2", "te')
    ledger.append(tmp_path / "engine", {"nonce": NONCE, "seen": []})
    ledger.append(tmp_path / "engine", {"nonce": OTHER, "seen": [NONCE]})
    found = ledger.read(journals, tmp_path / "engine")
    assert found.received == (Received("c1", NONCE),)
    assert found.returned == {NONCE}
    assert found.generated == {NONCE, OTHER}
    assert found.nonces == {NONCE}


def test_no_files_are_no_entries(tmp_path: Path) -> None:
    """A storm in which nobody got an answer has an empty ledger."""
    assert ledger.read(tmp_path / "nowhere", tmp_path / "nothing") == ledger.Ledger()


def test_the_policy_notes_what_a_prompt_brings_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reply has a nonce of its own, written down with the nonces of its prompt; calls the tool that is asked for."""
    path = tmp_path / "engine"
    monkeypatch.setenv("POLYNYA_CHAOS_LEDGER", str(path))
    first = policy.reply(f"turns=2 tool=bash{policy.ASSISTANT}", {})
    second = policy.reply(f"turns=2{policy.ASSISTANT}{first.text}{policy.ASSISTANT}", {})
    last = policy.reply(f"turns=1{policy.ASSISTANT}x{policy.ASSISTANT}", {})
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({e["nonce"] for e in entries}) == 3
    assert [len(e["seen"]) for e in entries] == [0, 1, 0]
    assert entries[0]["nonce"] in first.text
    assert entries[1]["seen"] == [entries[0]["nonce"]]
    assert '"bash"' in first.text
    assert '"note"' in second.text
    assert "tool_call" not in last.text
