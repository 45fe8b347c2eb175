"""Reading JSON bodies: exact for what the framework's reader refuses or rounds, and bounded in depth."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import Request, Response
from fastapi.routing import APIRoute

from schemas import json_text

DEEPEST: Final = 100
"""Levels of lists and mappings; no task needs more, and every reader behind us has a limit of its own."""


def read_json(body: bytes) -> Any:
    """The value of a JSON text; JSONDecodeError when it isn't one, or is nested too deeply."""
    try:
        value = json_text.load(body.decode())
    except UnicodeDecodeError as error:
        raise json.JSONDecodeError("not UTF-8", "", error.start) from error
    except json_text.JsonTextError as error:
        cause = error.__cause__
        if isinstance(cause, json.JSONDecodeError):
            raise json.JSONDecodeError(cause.msg, "", 0) from error
        raise json.JSONDecodeError(str(error), "", 0) from error
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        if depth > DEEPEST:
            raise json.JSONDecodeError(f"nested deeper than {DEEPEST} levels", "", 0)
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        level, depth = inner, depth + 1


class _JsonRequest(Request):
    async def json(self) -> Any:
        """The body's value."""
        return read_json(await self.body())


class JsonRoute(APIRoute):
    """A route whose bodies are read here."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's handler, on such a request."""
        handle = super().get_route_handler()

        async def read_then_handle(request: Request) -> Response:
            return await handle(_JsonRequest(request.scope, request.receive))

        return read_then_handle
