"""The task of a fault trial and the model that solves it: one or two shell commands, then a sentence. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from compose.trial.policy import text_of
from compose.trial.script import Step, shell_call

FIRST, SECOND = "first.txt", "second.txt"
FINAL = (
    "Everything that was asked for is done: the commands were run one after the other, each of them came back "
    "without an error, and there is nothing left to do."
)


def instruction(*, in_call: bool) -> str:
    """What the CLI is asked for; the model doesn't read it."""
    files = f"{FIRST} and then {SECOND}, with a command of its own each" if in_call else FIRST
    return f"Fault trial: write a number into {files}, and say in one sentence that you are done."


def expected_files(*, in_call: bool) -> tuple[str, ...]:
    """The files that stand in the working directory once the task is solved."""
    return (FIRST, SECOND) if in_call else (FIRST,)


def witness(file: str) -> str:
    """What the command for a file prints. The command itself doesn't contain it: whoever sees it has seen the result."""
    return f"{file.removesuffix('.txt')}-is-42"


def command(file: str) -> str:
    """Writes a file and prints its witness.

    There is no `$(` in it, which one harness takes for an attack. The pause is for a harness that loses the output of a command
    which ends too soon.
    """
    return f"expr 40 + 2 > {file}; sed s/^/{file.removesuffix('.txt')}-is-/ {file}; sleep 0.5"


def next_reply(prompt: str, tools: Sequence[Mapping[str, Any]], *, in_call: bool) -> str:
    """What a model that behaves says next: it goes by the results that it sees, not by how often it was asked."""
    for file in expected_files(in_call=in_call):
        if witness(file) not in prompt:
            call = shell_call(tools, command(file))
            # Nobody offers a shell for a title or a summary.
            return "A note about a fault trial." if call is None else text_of(Step(f"I write {file}.", (call,)))
    return FINAL
