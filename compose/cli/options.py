"""Options of several commands that stand together as one value.

A command takes a dataclass whose fields are annotated as options; Typer, which wants each of them as a parameter, is shown one
option per field.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Coroutine, Iterable
from functools import wraps
from typing import Any

from compose.cli.console import async_command


def spread_command(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The async function as a command, with the fields of its dataclass parameters as options, where those parameters stand."""
    hints = typing.get_type_hints(function, include_extras=True)
    values: dict[str, Any] = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}

    @wraps(function)
    async def gathered(**given: Any) -> None:
        made = {
            name: kind(**{field.name: given.pop(field.name) for field in dataclasses.fields(kind)})
            for name, kind in values.items()
        }
        await function(**given, **made)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        kind = values.get(parameter.name)
        if kind is None:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))
        else:
            parameters += _options(kind)
    return shown_as(async_command(gathered), parameters)


def shown_as(command: Callable[..., Any], parameters: Iterable[inspect.Parameter]) -> Callable[..., Any]:
    """The command, with these parameters as far as Typer sees. A name that comes twice is a ValueError."""
    signature = inspect.Signature(list(parameters))
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()}
    del command.__wrapped__  # type: ignore[attr-defined] # or its own signature would be taken
    return command


def _options(kind: Any) -> list[inspect.Parameter]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is dataclasses.MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(kind)
    ]
