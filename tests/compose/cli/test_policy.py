"""`polynya policy` as a person types it, on a bus in memory."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from typer.testing import CliRunner

from bus.memory import MemoryBus
from compose.cli import main, policy
from compose.errors import CommandError, ExitCode
from schemas.records import PolicyEvent, PolicyEventType

EVENTS = [
    PolicyEvent(policy_id="p", type=PolicyEventType.ENGINE_ADDED, engine_url="http://127.0.0.1:9", engine_kind="cpu"),
    PolicyEvent(policy_id="p", type=PolicyEventType.CLAIMED, trainer_id="t", reason="nonce", at=1),
    PolicyEvent(policy_id="p", type=PolicyEventType.PAUSED, trainer_id="t", version="1", trainer_epoch=2, at=2),
    PolicyEvent(
        policy_id="p",
        type=PolicyEventType.PUBLISHED,
        trainer_id="t",
        version="1",
        trainer_epoch=2,
        weights_path="/w/1",
        at=3,
    ),
    PolicyEvent(
        policy_id="q", type=PolicyEventType.ENGINE_ADDED, engine_url="http://127.0.0.1:9/v", engine_kind="vllm"
    ),
]


@pytest.fixture(autouse=True)
def _log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command finds the same log."""

    @asynccontextmanager
    async def opened(_: object) -> AsyncIterator[MemoryBus]:
        async with MemoryBus(partitions=1) as bus:
            await bus.publish_raw("policy.timeline", b"p", b"no avro")
            for event in EVENTS:
                await bus.publish(event)
            yield bus

    monkeypatch.setattr(policy, "open_bus", opened)


def said(*arguments: str) -> Any:
    """The JSON of a command."""
    done = CliRunner().invoke(main.app, ["policy", *arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    return json.loads(done.stdout.splitlines()[-1])  # logs go to stderr where the command itself sets them up


def test_the_list_says_who_writes_what() -> None:
    """Also of a policy that only has engines."""
    p, q = said("list")
    assert (p["policy_id"], p["version"], p["trainer_id"], p["epoch"], p["weights_path"]) == ("p", "1", "t", 2, "/w/1")
    assert (q["policy_id"], q["version"], q["trainer_id"], q["epoch"]) == ("q", "", "", None)


def test_an_engine_that_doesnt_answer_is_shown_as_that() -> None:
    """One of another kind can't be asked."""
    (engine,) = said("show", "p")["engines"]
    assert engine["url"] == "http://127.0.0.1:9"
    assert engine["serves"].startswith("unknown: http://127.0.0.1:9/model_info")
    (other,) = said("show", "q")["engines"]
    assert other["serves"] == "unknown: another kind of engine"


def test_the_history_is_the_log_in_its_order() -> None:
    """A claim's epoch is its own offset; the newest events are kept."""
    rows = said("history", "p")
    assert [(row["offset"], row["event"], row["epoch"]) for row in rows] == [
        (1, "engine_added", None),
        (2, "claimed", 2),
        (3, "paused", 2),
        (4, "published", 2),
    ]
    assert [row["what"] for row in rows] == ["http://127.0.0.1:9", "", "", "/w/1"]
    assert [row["event"] for row in said("history", "p", "--last", "1")] == ["published"]


def test_tables_for_people() -> None:
    """The same without --json."""
    for arguments, words in ((["list"], "writer"), (["show", "p"], "written by t"), (["history", "p"], "published")):
        done = CliRunner().invoke(main.app, ["policy", *arguments], catch_exceptions=False)
        assert words in done.stdout


def test_an_unknown_policy_is_a_usage_error() -> None:
    """It says which there are."""
    for command in ("show", "history"):
        error = CliRunner().invoke(main.app, ["policy", command, "x"]).exception
        assert isinstance(error, CommandError)
        assert error.code is ExitCode.USAGE
        assert "knows p, q" in str(error)
