"""Tasks of the Harbor format: their own verifier, in the runtime as the agent left it."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from stage_workers import evaluators
from stage_workers.evaluators import EvaluatorError
from stage_workers.evaluators.harbor import relocated, rewards_in
from stage_workers.runtimes import LocalRuntime
from tests.stage_workers.evaluators.conftest import ContextMaker

SCRIPT = """#!/bin/bash
set -u
mkdir -p /logs/verifier
if [ "$(cat answer.txt)" = "$(cat /tests/expected.txt)$EXTRA" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""


def options(**more: Any) -> dict[str, Any]:
    tests = {"test.sh": SCRIPT, "expected.txt": {"base64": base64.b64encode(b"42").decode()}}
    return {"tests": tests, "env": {"EXTRA": "!"}, **more}


@pytest.mark.parametrize(("answer", "value"), [(b"42!", 1.0), (b"42", 0.0)])
async def test_reward_file(runtime: LocalRuntime, context: ContextMaker, answer: bytes, value: float) -> None:
    """The verifier sees the working directory, its files and its environment; on `local` nothing of the machine is touched."""
    await runtime.upload("answer.txt", answer)
    (grade,) = await evaluators.get("harbor", options()).evaluate(context(runtime))
    assert (grade.name, grade.value) == ("reward", value)
    assert not Path("/logs/verifier").exists()


async def test_planted_rewards_do_not_count(runtime: LocalRuntime, context: ContextMaker) -> None:
    """What the agent left where the reward is read is gone before the verifier runs."""
    logs = f"{runtime.home}/harbor/logs"
    await runtime.upload(f"{logs}/reward.json", b'{"reward": 1}')
    await runtime.upload(f"{runtime.home}/harbor/tests/test.sh", b"echo 1 > /logs/verifier/reward.txt")
    tests = {"test.sh": "echo 0 > /logs/verifier/reward.txt"}
    (grade,) = await evaluators.get("harbor", {"tests": tests}).evaluate(context(runtime))
    assert grade.value == 0.0


async def test_named_rewards(runtime: LocalRuntime, context: ContextMaker) -> None:
    """A reward.json gives one reward for each name; the option renames the main one."""
    script = 'echo \'{"style": 0.5, "reward": 0.25}\' > /logs/verifier/reward.json'
    found = await evaluators.get("harbor", {"tests": {"test.sh": script}, "reward": "main"}).evaluate(context(runtime))
    assert [(grade.name, grade.value) for grade in found] == [("main", 0.25), ("style", 0.5)]


async def test_no_reward(runtime: LocalRuntime, context: ContextMaker) -> None:
    """A verifier that writes nothing, or doesn't end, gives no grade."""
    with pytest.raises(EvaluatorError, match=r"neither reward\.txt nor reward\.json; it exited with 3: boom"):
        await evaluators.get("harbor", {"tests": {"test.sh": "echo boom >&2; exit 3"}}).evaluate(context(runtime))
    with pytest.raises(EvaluatorError, match=r"still running after 0\.3 s"):
        await evaluators.get("harbor", {"tests": {"test.sh": "sleep 60"}, "timeout_s": 0.3}).evaluate(context(runtime))


@pytest.mark.parametrize(
    ("text", "named", "message"),
    [
        (b"many", None, r"reward\.txt: 'many'"),
        (None, b"{", "no JSON"),
        (None, b"[" * 100_000, "no JSON"),
        (None, b'{"a": "x"}', r"reward\.json, a"),
        (None, b"1" + b"0" * 400, "no finite number"),
    ],
)
def test_bad_reward_files(text: bytes | None, named: bytes | None, message: str) -> None:
    """Only finite numbers are rewards."""
    with pytest.raises(EvaluatorError, match=message):
        rewards_in(text, named)


def test_both_files() -> None:
    """Where both are written, the named ones win; the main one comes first."""
    assert rewards_in(b"1\n", b'{"a": 2, "reward": 0.5}') == {"reward": 0.5, "a": 2.0}
    assert rewards_in(b" 0.75 ", None) == {"reward": 0.75}
    assert rewards_in(None, None) == {}


def test_relocation_is_careful() -> None:
    """Only whole absolute paths move; binary files stay as they are."""
    moved = relocated(b"cp /tests/a ./tests/b /tests2 x/tests; cd '/tests'", {"/tests": "/h/t"})
    assert moved == b"cp /h/t/a ./tests/b /tests2 x/tests; cd '/h/t'"
    assert relocated(b"\xff/tests", {"/tests": "/h/t"}) == b"\xff/tests"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"options\.tests: must hold the file test\.sh"),
        ({"tests": {"test.sh": "x", "../y": "z"}}, r"options\.tests\.\.\./y: must be a path inside"),
        ({"tests": {"test.sh": {"base64": "?"}}}, r"options\.tests\.test\.sh: is no base64"),
        ({"tests": {"test.sh": {"base64": "é"}}}, r"options\.tests\.test\.sh: is no base64"),
        ({"tests": {"test.sh": "\udc80"}}, r"options\.tests\.test\.sh: holds half a character"),
        ({"tests": {"test.sh": 3}}, "must be a text, or"),
    ],
)
def test_bad_options(given: dict[str, Any], message: str) -> None:
    """Each error begins with the field's path."""
    with pytest.raises(EvaluatorError, match=message):
        evaluators.validate("harbor", given)
