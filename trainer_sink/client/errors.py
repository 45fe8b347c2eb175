"""What the API says no with, as exceptions. Whether to ask again is a property of the class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


class PolynyaApiError(Exception):
    """The API answered with an error: `status`, what and why in its text, `hint`, and `errors` (path → what is wrong)."""

    is_retriable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        hint: str = "",
        errors: Mapping[str, str] | None = None,
        retry_after_s: float = 0,
    ) -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.status = status
        self.hint = hint
        self.errors = dict(errors or {})
        self.retry_after_s = retry_after_s


class UnauthorizedError(PolynyaApiError):
    """The key is missing or not the API's."""


class NotFoundError(PolynyaApiError):
    """There is no such task, session, node or trajectory (yet)."""


class ConflictError(PolynyaApiError):
    """The task id belongs to another specification."""


class InvalidRequestError(PolynyaApiError):
    """The API can't take this: `errors` names each field."""


class TooManyRequestsError(PolynyaApiError):
    """Asked more often than the API allows."""

    is_retriable = True


class ApiUnavailableError(PolynyaApiError):
    """Nothing answered, or the API can't answer now. What was submitted may have been taken: submit it again under its id."""

    is_retriable = True


class TaskTimeoutError(PolynyaApiError, TimeoutError):
    """A task hadn't ended when the time was up; it goes on."""


_BY_STATUS: dict[int, type[PolynyaApiError]] = {
    401: UnauthorizedError,
    404: NotFoundError,
    409: ConflictError,
    429: TooManyRequestsError,
}


def error_of(status: int, body: Any, retry_after: str | None) -> PolynyaApiError:
    """The exception for an answer; `body` is its decoded JSON, or text."""
    problem: Mapping[str, Any] = body if isinstance(body, Mapping) else {"detail": str(body)[:500]}
    kind = _BY_STATUS.get(status) or (ApiUnavailableError if status >= 500 else InvalidRequestError)
    errors = {str(e.get("path")): str(e.get("problem")) for e in problem.get("errors") or [] if isinstance(e, Mapping)}
    return kind(
        f"{status}: {problem.get('detail') or problem.get('title') or 'no reason given'}",
        status=status,
        hint=str(problem.get("hint") or ""),
        errors=errors,
        retry_after_s=float(retry_after) if retry_after and retry_after.isdigit() else 0.0,
    )
