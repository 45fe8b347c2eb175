"""What a model does that passes the trial: parallel calls, a call that fails, a file with unicode, a closing sentence. Pure.

It knows no harness by name: it looks for a shell among the tools that it was offered, and fills in what the tool's schema asks for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

FILE: Final = "note-ünïcode.txt"
CONTENT: Final = "Grüße, 世界 🧊\nzweite Zeile: „ok“\n"
MARK: Final = "Polynya trial"
INSTRUCTION: Final = (
    f"{MARK}: look around with two commands at once, see what happens when you read the file missing.txt, "
    f"then write the file {FILE} with exactly two lines, „Grüße, 世界 🧊“ without its quotation marks and „zweite Zeile: „ok““ without the "
    "outer ones, and say in one sentence that you are done."
)
# The evaluator's command: the file is there, byte for byte.
CHECK: Final = f"printf '{CONTENT}' | cmp - {FILE}"

# Shell and file tools as the harnesses call them; the first one that is offered is used.
_SHELLS = ("Bash", "bash", "exec_command", "run_shell_command", "shell", "Shell", "execute_command", "run_command")
_WRITERS = ("Write", "write", "write_file", "WriteFile")
_COMMANDS = ("command", "cmd", "script")
_PATHS = ("file_path", "filePath", "path", "absolute_path")
_CONTENTS = ("content", "contents", "text")
_DIRECTORY = re.compile(r"CWD=(/[^\s\"'\\<,)]+)")
# A harness that ends only by a command says so in its instructions.
_FINISH = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call: the tool's name and its arguments."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One reply: its text, then its calls."""

    text: str
    calls: tuple[Call, ...] = ()


# How many replies the script has, whatever the harness: the number of model calls of a sound trial.
STEPS: Final = 4


def next_step(tools: Sequence[Mapping[str, Any]], turn: int, conversation: str) -> Step:
    """The reply after `turn` earlier ones. `tools` are OpenAI function tools; `conversation` is searched for the working directory."""
    functions = [tool.get("function", tool) for tool in tools]
    shell = _find(functions, _SHELLS)
    if shell is None:
        # A title, a summary, a question beside the task: no tools are offered for those.
        return Step("A note with unicode")
    match turn:
        case 0:
            # No `$(` nor `$((`: Gemini CLI refuses a command with either.
            return Step(
                "I look around: ěščř, 你好 🧊.",
                (_run(shell, "echo CWD=$PWD"), _run(shell, "printf 'zwei ✓\\n'; expr 40 + 2")),
            )
        case 1:
            return Step("Now the file that may be missing.", (_run(shell, "cat missing.txt && echo there"),))
        case 2:
            return Step("It is missing. I write the note.", (_write(functions, shell, conversation),))
        case 3 if _FINISH in conversation:
            return Step("The note is written. Fertig ✅", (_run(shell, f"echo {_FINISH}"),))
        case _:
            return Step("The note is written. Fertig ✅")


def shell_call(tools: Sequence[Mapping[str, Any]], command: str) -> Call | None:
    """A call of the shell among `tools` (OpenAI function tools) that runs this command; None when no shell is offered."""
    shell = _find([tool.get("function", tool) for tool in tools], _SHELLS)
    return None if shell is None else _run(shell, command)


def _find(functions: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Mapping[str, Any] | None:
    offered = {str(function.get("name")): function for function in functions}
    return next((offered[name] for name in names if name in offered), None)


def _run(shell: Mapping[str, Any], command: str) -> Call:
    return _call(shell, {_COMMANDS: command})


def _write(functions: Sequence[Mapping[str, Any]], shell: Mapping[str, Any], conversation: str) -> Call:
    writer = _find(functions, _WRITERS)
    directory = next(iter(_DIRECTORY.findall(conversation)), "")
    if writer is None or not directory:
        return _run(shell, f"printf '{CONTENT}' > {FILE}".replace("\n", "\\n"))
    return _call(writer, {_PATHS: f"{directory}/{FILE}", _CONTENTS: CONTENT})


def _call(function: Mapping[str, Any], values: Mapping[tuple[str, ...], str]) -> Call:
    """A call with these values under whichever of their names the tool knows; other required texts say what it is for."""
    schema = function.get("parameters") or {}
    properties: Mapping[str, Any] = schema.get("properties") or {}
    arguments: dict[str, Any] = {}
    for names, value in values.items():
        arguments[next((name for name in names if name in properties), names[0])] = value
    for name in schema.get("required") or []:
        if name not in arguments:
            arguments[name] = _filler(properties.get(name) or {})
    return Call(str(function["name"]), arguments)


def _filler(schema: Mapping[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    return {"boolean": False, "integer": 30, "number": 30, "array": [], "object": {}}.get(
        str(schema.get("type")), "a step of the trial"
    )


def dumps(arguments: Mapping[str, Any]) -> str:
    """Arguments as a model writes them: spaces after separators, letters as they are."""
    return json.dumps(arguments, ensure_ascii=False)
