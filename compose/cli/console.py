"""How commands speak: one console, JSON for machines, errors with the next thing to type."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar

import structlog
from rich.console import Console

from compose.errors import CommandError

P = ParamSpec("P")
T = TypeVar("T")

# Wide enough for our tables where there is no terminal that says how wide it is.
PLAIN_WIDTH = 110

out = Console(highlight=False, width=None if sys.stdout.isatty() else PLAIN_WIDTH)
err = Console(stderr=True, highlight=False, soft_wrap=True)


def die(error: CommandError) -> NoReturn:
    """Print an error and leave with its code."""
    err.print(f"[bold red]error:[/] {_plain(str(error))}")
    if error.hint:
        err.print(f"[bold]try:[/] {_plain(error.hint)}")
    sys.exit(int(error.code))


def _plain(text: str) -> str:
    return text.replace("[", "\\[")


def print_json(value: Any) -> None:
    """One JSON document on stdout, for machines."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def flush() -> None:
    """Give out what is still held back; that nobody reads it any more (`polynya … | head`) is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes once more when it ends, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_live() -> bool:
    """Whether a person watches: live progress on a terminal, plain lines elsewhere."""
    return out.is_terminal


def async_command(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Run an async command function in its own event loop."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        return asyncio.run(function(*args, **kwargs))

    return run


@contextmanager
def log_apart(path: Path) -> Iterator[None]:
    """What trainer and bus say meanwhile goes into a file of its own: the screen is for what the command shows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        before = structlog.get_config()["logger_factory"]
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(file))
        try:
            yield
        finally:
            structlog.configure(logger_factory=before)
