"""The arithmetic behind the cost of a session: CPU seconds from /proc and from a shell, and the policy of its sessions."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from compose.demo.family import PI_ARGUMENTS
from harnesses import launch_plan
from harnesses.definition import parse_adapter
from tests.bench import session_cost, writes
from tests.bench.cpu import cpu_time, cpu_times, shell_times

SPIN = "import time; end = time.process_time() + 0.15\nwhile time.process_time() < end: pass"


def test_own_and_reaped_seconds_are_told_apart() -> None:
    """What a process computes is its own; what a child of it did is counted once that is reaped."""
    before, end = cpu_time(os.getpid()), time.process_time() + 0.1
    while time.process_time() < end:
        pass
    child = subprocess.Popen([sys.executable, "-c", SPIN])
    assert (cpu_times({"me": os.getpid()})["me"] - before).reaped_s == 0
    child.wait(30)
    spent = cpu_time(os.getpid()) - before
    assert 0.08 <= spent.own_s < 0.5
    assert 0.13 <= spent.reaped_s < 0.6


def test_a_shell_tells_its_childs_seconds(tmp_path: Path) -> None:
    """The measuring shell passes its arguments and the exit code on, and leaves both figures in a file."""
    code = f"{SPIN}\nimport sys; sys.exit(len(sys.argv))"
    argv = ["bash", "-c", session_cost.SHELL, str(tmp_path), sys.executable, "-c", code, "a b", ""]
    assert subprocess.run(argv, timeout=30, check=False).returncode == 3
    (told,) = tmp_path.iterdir()
    own, children = shell_times(told.read_text())
    assert own < 0.1
    assert 0.15 <= children < 0.6


def test_a_shells_minutes_count() -> None:
    """`1m2.5s` is 62.5 seconds; user and system are added."""
    assert list(shell_times("0m0.010s 0m0.002s\n1m2.500s 0m0.500s\n")) == pytest.approx([0.012, 63.0])


def test_the_measured_harness_is_pi_with_lean_flags(tmp_path: Path) -> None:
    """Pi's own definition, started by the shell, with its prompt last."""
    made = session_cost._definition(tmp_path, tmp_path / "times")
    adapter = parse_adapter(yaml.safe_load((made / "measured_pi.yaml").read_text()), "measured_pi.yaml")
    urls = {"openai_chat": "http://127.0.0.1:1/v1"}
    plan = launch_plan(
        adapter, {}, instruction="do it", urls=urls, secret="s", model="m", home="/h", workdir="/w", executable="/pi"
    )
    assert plan.argv[:5] == ("bash", "-c", session_cost.SHELL, str(tmp_path / "times"), "/pi")
    assert plan.argv[-3:] == ("-p", "--", "do it")
    assert set(PI_ARGUMENTS) < set(plan.argv)
    assert any(path.endswith("models.json") for path in plan.files)


def test_the_policy_writes_what_is_asked_and_ends() -> None:
    """A call with the last instruction's word and file; after the tool's answer the closing words."""
    prompt = f"<|im_start|>user\n{writes.instruction(9)}<|im_end|>\n{writes.ASSISTANT}"
    call = writes.reply(prompt, {})
    assert '"path": "b.txt", "content": "birch"' in call
    assert writes.evaluator(9)["options"]["command"] == 'test "$(cat b.txt)" = birch'
    assert writes.reply(f"{prompt}{call}<|im_end|>\n{writes.ASSISTANT}", {}) == "Done."
