"""docs/sessions.md shows the state machines as they are in the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stream_processors.orchestrator import describe
from stream_processors.orchestrator.groups.states import MOVES as GROUP_MOVES
from stream_processors.orchestrator.states import MOVES

PAGE = Path(__file__).parents[3] / "docs" / "sessions.md"


@pytest.mark.parametrize("name", ["sessions", "groups"])
def test_the_page_holds_the_table_of_the_code(name: str) -> None:
    """When it doesn't: print it with the command that stands above it, and put it there."""
    found = re.search(rf"<!-- {name}: .+? -->\n(.+?)\n<!-- end -->", PAGE.read_text(), re.DOTALL)
    assert found is not None
    assert found[1] == getattr(describe, name)()


def test_every_cell_of_the_machines_is_in_its_table() -> None:
    """A stage and a fact stand in a row exactly when the machine moves."""
    for text, moves, new in ((describe.sessions(), MOVES, "UNKNOWN"), (describe.groups(), GROUP_MOVES, "new")):
        cells = set()
        for line in text.splitlines()[2:]:
            stages, facts, *_ = (part.strip() for part in line.strip("|").split("|"))
            cells |= {(s, f.strip("`")) for s in stages.split(", ") for f in facts.split(", ")}
        assert cells == {("(new)" if stage == new else str(stage), str(fact)) for stage, fact in moves}
