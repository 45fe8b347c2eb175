"""What harnesses have received in full, by their own account and by the engine's: kept outside of the runtime, fsynced.

Two sources: the test agent's journals (every finished answer with its id and text) and the engine's ledger (which nonces each
prompt brought back). Both are files of JSON lines; a line torn by a kill is left out, since nobody acted on it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

NONCE: Final = re.compile(r"nonce-[0-9a-f]{32}")
_ID_PREFIX: Final = "chatcmpl-"


@dataclass(frozen=True, slots=True)
class Received:
    """One answer that reached a harness: the call's id and the nonce in its text."""

    completion_id: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Ledger:
    """What was received: the agents' own account, and the nonces that came back to the engine in later prompts."""

    received: tuple[Received, ...] = ()
    returned: frozenset[str] = frozenset()
    generated: frozenset[str] = frozenset()

    @property
    def nonces(self) -> frozenset[str]:
        """The nonce of every reply that some harness has received in full."""
        return self.returned | {r.nonce for r in self.received}


def append(path: Path, entry: Mapping[str, Any]) -> None:
    """Add one line and wait until it is on the disk; lines of several threads don't mix."""
    line = (json.dumps(entry) + "\n").encode()
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line)
        os.fsync(handle)
    finally:
        os.close(handle)


def read(journals: Path, engine_ledger: Path) -> Ledger:
    """Both accounts, as they stand on the disk."""
    received = []
    for path in sorted(journals.glob("*")):
        for entry in _lines(path):
            found = NONCE.search(str(entry.get("text", "")))
            received.append(Received(str(entry["id"]).removeprefix(_ID_PREFIX), found.group() if found else ""))
    entries = list(_lines(engine_ledger))
    return Ledger(
        received=tuple(received),
        returned=frozenset(nonce for entry in entries for nonce in entry["seen"]),
        generated=frozenset(entry["nonce"] for entry in entries),
    )


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for line in path.read_text(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict):
            yield entry
