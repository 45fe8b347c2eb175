"""How a command fails: what, where and why, with the next thing to type and the exit code that a script sees."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the shell learns from a command."""

    OK = 0
    FAILED = 1
    USAGE = 2
    DEPENDENCY_DOWN = 3


class CommandError(Exception):
    """A command can't go on: what, where and why, with the next thing to type."""

    def __init__(self, message: str, *, hint: str = "", code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


def usage(message: str, *, hint: str = "") -> CommandError:
    """The error of a command that was given something wrong."""
    return CommandError(message, hint=hint, code=ExitCode.USAGE)


def dependency_down(message: str, *, hint: str = "") -> CommandError:
    """The error of a command whose Kafka, proxy, engine or tool isn't there."""
    return CommandError(message, hint=hint, code=ExitCode.DEPENDENCY_DOWN)
