"""The page and the task, without a single process."""

from __future__ import annotations

from dataclasses import replace

from tests.faults.faults import FAULTS
from tests.faults.findings import Finding
from tests.faults.page import PATH, comparable, write_page
from tests.faults.task import FINAL, FIRST, SECOND, command, next_reply, witness

FOUND = Finding(record="failed, busy, 429", reaction="asks again", waited_s=2.3, calls=3, trained="2", end="done")
SHELL = {"type": "function", "function": {"name": "sh", "parameters": {"properties": {"command": {}}}}}
BASH = {"type": "function", "function": {"name": "bash", "parameters": {"properties": {"command": {}}}}}


def page_of(found: Finding) -> str:
    return write_page({("pi", "429"): found, ("codex", "429"): FOUND})


def test_only_the_times_may_differ() -> None:
    """Another pause is the same page; another reaction, another number of calls or another end isn't."""
    page = comparable(page_of(FOUND))
    assert comparable(page_of(replace(FOUND, waited_s=None))) == page
    for change in ({"reaction": "no further call"}, {"calls": 4}, {"trained": "1"}, {"end": "hangs"}, {"record": "x"}):
        assert comparable(page_of(replace(FOUND, **change))) != page


def test_the_committed_page_is_whole() -> None:
    """Every fault has its section; none of its runs hangs."""
    page = PATH.read_text(encoding="utf-8")
    assert [line[3:].lower() for line in page.splitlines() if line.startswith("## ")][1:] == [
        fault.title.lower() for fault in FAULTS
    ]
    assert "| hangs |" not in page


def test_the_model_goes_by_results() -> None:
    """A command is asked for until its result is seen; its own text, also in a broken call, is no result."""
    assert command(FIRST) in next_reply("", [BASH], in_call=False).replace('\\"', '"')
    assert SECOND in next_reply(witness(FIRST) + command(SECOND), [BASH], in_call=True)
    assert next_reply(witness(FIRST) + witness(SECOND), [BASH], in_call=True) == FINAL
    assert next_reply(witness(FIRST), [BASH], in_call=False) == FINAL
    assert witness(SECOND) not in command(SECOND)


def test_no_shell_no_command() -> None:
    """A call beside the task, without a shell among its tools, gets words."""
    assert "<tool_call>" not in next_reply("", [SHELL], in_call=False)
