"""Errors of the harness package: few, and each says what to type next."""

from __future__ import annotations


class HarnessError(ValueError):
    """Something about a harness is wrong: its definition, its options, or its installation."""

    is_retriable: bool = False


class UnknownHarnessError(HarnessError):
    """No definition has this name."""


class OptionError(HarnessError):
    """An option of a task's harness is missing, unknown or of the wrong type; `path` names the field."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class InstallError(HarnessError):
    """A harness could not be installed; trying again later may help (a registry was away, a disk was full)."""

    is_retriable = True


class RegistryUnreachableError(InstallError):
    """A package registry could not be reached."""
