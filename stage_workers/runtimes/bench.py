"""Checks of runtimes: what one is, where it gets its runtimes, and what most of them say.

A check raises `CheckFailed` where the runtime doesn't do it, and `NotHere` where this machine can't have it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from schemas.task import RuntimeSpec
from stage_workers.runtimes.base import ExecResult, Runtime, RuntimeFactory, RuntimeFault

STEP_S = 60.0


class CheckFailed(Exception):  # noqa: N818  # a verdict, not an error of ours
    """The runtime doesn't do what it must."""


class NotHere(Exception):  # noqa: N818  # a verdict, not an error of ours
    """This machine can't have it; the text says why."""


@dataclass(slots=True, kw_only=True)
class Bench:
    """Where checks get their runtimes: `spec` is what they ask for beside their own limits, `lacks` which checks are no use and why."""

    make: RuntimeFactory
    spec: RuntimeSpec
    lacks: Mapping[str, str] = field(default_factory=dict)
    _count: int = 0

    @asynccontextmanager
    async def runtime(self, **fields: object) -> AsyncIterator[Runtime]:
        """A started runtime, stopped at the end; `fields` change the spec."""
        self._count += 1
        place = self.make(self.spec.model_copy(update=fields), f"check.{os.getpid()}.{self._count}")
        try:
            await place.start()
            yield place
        finally:
            await place.stop()


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a runtime must do: its name, what it means, and how it is found out."""

    name: str
    meaning: str
    do: Callable[[Bench], Awaitable[None]]

    async def run(self, bench: Bench) -> None:
        """Finds it out. Raises CheckFailed, NotHere, or RuntimeFault where the runtime itself fails."""
        if self.name in bench.lacks:
            raise NotHere(bench.lacks[self.name])
        await self.do(bench)


CHECKS: list[Check] = []


def check(function: Callable[[Bench], Awaitable[None]]) -> Callable[[Bench], Awaitable[None]]:
    """Registers a check; its docstring says what it means."""
    CHECKS.append(Check(function.__name__, (function.__doc__ or "").strip(), function))
    return function


def same(found: object, expected: object, what: str) -> None:
    """Raises CheckFailed unless both are equal."""
    if found != expected:
        raise CheckFailed(f"{what}: {found!r} instead of {expected!r}")


def holds(condition: object, what: str) -> None:
    """Raises CheckFailed with this text unless it is true."""
    if not condition:
        raise CheckFailed(what)


async def sh(place: Runtime, script: str, *arguments: str, timeout_s: float = STEP_S) -> ExecResult:
    """Runs a shell script in a runtime."""
    return await place.exec(["/bin/sh", "-c", script, "sh", *arguments], timeout_s=timeout_s)


@contextlib.asynccontextmanager
async def fault_says(text: str, what: str) -> AsyncIterator[None]:
    """Raises CheckFailed unless the block raises a RuntimeFault that says this."""
    try:
        yield
    except RuntimeFault as fault:
        holds(text in str(fault), f"{what}: the fault doesn't say {text!r}: {fault}")
    else:
        raise CheckFailed(f"{what}: no fault")
