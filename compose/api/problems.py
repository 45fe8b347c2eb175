"""How the API says no: one shape for every error (RFC 9457), with what, where, why and what to do next."""

from __future__ import annotations

from typing import Any, Final

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from bus import BusError
from compose.cli.errors import WORDS, path_of
from schemas import json_text

_log = structlog.get_logger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_S: Final = 2

TITLES: Final = {
    400: "not a request of ours",
    401: "no key, or not the right one",
    404: "there is no such thing",
    405: "this can't be done here",
    408: "the body took too long",
    409: "it exists and is another one",
    413: "the body is too large",
    415: "not a body of a kind that is read here",
    422: "something in the request isn't right",
    429: "too many requests",
    500: "a fault of ours",
    503: "not now",
}


class FieldProblem(BaseModel):
    """What is wrong with one field."""

    path: str = Field(description="the field's path, as in `prepare[0].exec`")
    problem: str


class Problem(BaseModel):
    """The one shape of an error."""

    type: str = Field(default="about:blank", description="always about:blank: the status and the title say the kind")
    title: str = Field(description="what kind of error it is")
    status: int
    detail: str = Field(description="what, where and why")
    hint: str = Field(default="", description="what to do next")
    errors: list[FieldProblem] = Field(default_factory=list, description="every field that is wrong")


class ApiError(Exception):
    """An answer that isn't what was asked for: status, what and why, and what to do next."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        hint: str = "",
        errors: list[FieldProblem] | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.hint = hint
        self.errors = errors or []
        self.retry_after_s = retry_after_s


def not_found(what: str, name: str, *, hint: str = "") -> ApiError:
    """404: nothing by that name is known."""
    return ApiError(404, f"there is no {what} {name!r} that this API knows", hint=hint)


def not_now(detail: str, *, hint: str = "ask again in a moment", retry_after_s: int = RETRY_AFTER_S) -> ApiError:
    """503: the same request may succeed later."""
    return ApiError(503, detail, hint=hint, retry_after_s=retry_after_s)


class ApiResponse(JSONResponse):
    """JSON as all of ours is spelled: exact for lone surrogates and large numbers; NaN and infinities are null."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return json_text.dump(content).encode()


def answer(problem: ApiError) -> JSONResponse:
    """The response for an error."""
    body = Problem(
        title=TITLES.get(problem.status, "error"),
        status=problem.status,
        detail=str(problem),
        hint=problem.hint,
        errors=problem.errors,
    )
    headers = {"Retry-After": str(problem.retry_after_s)} if problem.retry_after_s is not None else {}
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return ApiResponse(body.model_dump(mode="json"), problem.status, headers=headers, media_type=MEDIA_TYPE)


def field_problems(errors: Any) -> list[FieldProblem]:
    """Validation errors in our words; `body` and `query` stand before a path only where it isn't the body's."""
    found = []
    for error in errors:
        location = tuple(error["loc"])
        if error["type"] == "json_invalid":
            text = error.get("ctx", {}).get("error", "")
            found.append(FieldProblem(path="(the whole)", problem=f"this is no JSON: {text}"))
            continue
        where = location[1:] if location[:1] == ("body",) else location
        found.append(FieldProblem(path=path_of(where), problem=WORDS.get(error["type"], error["msg"])))
    return found


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How a route documents its errors; those that any route may answer with are added."""
    wanted = sorted({*statuses, 401, 429, 503})
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": TITLES[status], "content": content} for status in wanted}


def _methods(request: Request) -> set[str]:
    """What can be done at a path, from the document: the framework names the methods of the first route there only."""
    paths: dict[str, dict[str, Any]] = request.app.openapi()["paths"]
    asked = request.scope["path"]
    found = [methods for path, methods in paths.items() if compile_path(path)[0].match(asked)]
    return {method.upper() for methods in ([paths[asked]] if asked in paths else found) for method in methods}


def install(app: FastAPI) -> None:
    """Give every error of the application the one shape."""

    @app.exception_handler(ApiError)
    async def _ours(_: Request, error: ApiError) -> JSONResponse:
        return answer(error)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        problems = field_problems(error.errors())
        first = problems[0] if problems else FieldProblem(path="", problem="")
        detail = f"{first.path}: {first.problem}" + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "")
        return answer(ApiError(422, detail, hint="correct the fields and send it again", errors=problems))

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        detail = f"{request.method} {request.url.path}: {error.detail}"
        response = answer(ApiError(error.status_code, detail, hint="GET /docs lists what there is"))
        response.headers.update(error.headers or {})
        if error.status_code == 405:
            response.headers["Allow"] = ", ".join(sorted(_methods(request)))
        return response

    @app.exception_handler(BusError)
    async def _bus(_: Request, error: BusError) -> JSONResponse:
        return answer(not_now(f"the log doesn't answer: {error}", hint="see whether Kafka runs, and ask again"))

    @app.exception_handler(Exception)
    async def _bug(request: Request, error: Exception) -> JSONResponse:
        _log.error("request.failed", method=request.method, path=request.url.path, error=repr(error))
        return answer(ApiError(500, "the request met a fault of this API", hint="the API's log says more"))
