"""The trial's script: what a model that passes does, whatever tools it is offered."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from compose.trial.policy import ASSISTANT, reply, tools_of
from compose.trial.script import CHECK, CONTENT, FILE, STEPS, next_step, shell_call


def tool(name: str, required: list[str] | None = None, **properties: object) -> dict[str, object]:
    parameters = {"type": "object", "properties": properties, "required": required or list(properties)}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


BASH = tool(
    "Bash",
    ["command", "description", "timeout"],
    command={"type": "string"},
    description={"type": "string"},
    timeout={"type": "number"},
)
EXEC = tool("exec_command", ["cmd"], cmd={"type": "string"})
WRITE = tool("Write", file_path={"type": "string"}, content={"type": "string"})


def test_four_steps() -> None:
    """Two calls at once, one that fails, the file, the closing sentence; every required argument is there."""
    steps = [next_step([BASH, WRITE], turn, "CWD=/w/here\n") for turn in range(STEPS)]
    assert [[call.name for call in step.calls] for step in steps] == [["Bash", "Bash"], ["Bash"], ["Write"], []]
    assert set(steps[0].calls[0].arguments) == {"command", "description", "timeout"}
    assert steps[2].calls[0].arguments == {"file_path": f"/w/here/{FILE}", "content": CONTENT}
    assert "Fertig" in steps[3].text


def test_other_names() -> None:
    """A shell by another name, with another argument; without a tool for files the shell writes."""
    steps = [next_step([EXEC], turn, "") for turn in range(STEPS)]
    assert steps[0].calls[0].arguments == {"cmd": "echo CWD=$PWD"}
    assert steps[2].calls[0].name == "exec_command"


def test_a_harness_that_ends_by_a_command() -> None:
    """Where the instructions name such a command, the last step runs it."""
    (call,) = next_step([EXEC], 3, "end with COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT").calls
    assert call.arguments == {"cmd": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}


def test_a_command_for_whatever_shell_there_is() -> None:
    """The offered shell runs it, under its own name for the argument; without a shell there is no call."""
    call = shell_call([WRITE, EXEC], "ls")
    assert call is not None
    assert (call.name, call.arguments) == ("exec_command", {"cmd": "ls"})
    assert shell_call([WRITE], "ls") is None


def test_side_calls_get_a_text() -> None:
    """A call without tools is a title or a summary: it gets words and no calls."""
    assert next_step([], 0, "").calls == ()


@pytest.mark.parametrize("tools", [[EXEC], [EXEC, WRITE]])
def test_the_check_holds_for_what_the_script_writes(tmp_path: Path, tools: list[dict[str, object]]) -> None:
    """What the script does by shell or by tool passes the evaluator's command; anything else doesn't."""
    (call,) = next_step(tools, 2, f"CWD={tmp_path}").calls
    if call.name == "Write":
        Path(call.arguments["file_path"]).write_text(call.arguments["content"], encoding="utf-8")
    else:
        subprocess.run(["/bin/sh", "-c", call.arguments["cmd"]], cwd=tmp_path, check=True, timeout=20)
    check = ["/bin/sh", "-c", CHECK]
    assert subprocess.run(check, cwd=tmp_path, check=False, timeout=20).returncode == 0
    (tmp_path / FILE).write_text(CONTENT.rstrip())
    assert subprocess.run(check, cwd=tmp_path, check=False, timeout=20, capture_output=True).returncode != 0


def prompt(turns: int) -> str:
    head = "<tools>\n- read: a harness' own words\n</tools>\n<tools>\n" + json.dumps(EXEC) + "\n</tools>\n"
    return head + ASSISTANT.join(["the task\n"] * (turns + 2))


def test_the_policy_reads_tools_and_turns_from_the_prompt() -> None:
    """A block of the same name in a harness' own prompt holds no tools; the calls are written as the template teaches."""
    assert tools_of(prompt(0)) == [EXEC]
    assert reply(prompt(0), {}).count("<tool_call>") == 2
    assert (
        json.loads(reply(prompt(1), {}).split("<tool_call>\n")[1].split("\n</tool_call>")[0])["name"] == "exec_command"
    )
    assert "<tool_call>" not in reply(prompt(3), {})
