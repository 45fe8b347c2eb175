"""Which dialect and operation a request is for, and which secret it carries."""

from __future__ import annotations

from collections.abc import Mapping

from capture_proxy.dialects.base import Operation, Route

_SECRET_HEADERS = ("x-api-key", "x-goog-api-key")

_ROUTES: dict[tuple[str, str], tuple[str, Operation]] = {
    ("POST", "/v1/chat/completions"): ("openai_chat", "generate"),
    ("POST", "/chat/completions"): ("openai_chat", "generate"),
    ("POST", "/v1/responses"): ("openai_responses", "generate"),
    ("POST", "/responses"): ("openai_responses", "generate"),
    ("POST", "/v1/responses/input_tokens"): ("openai_responses", "count_tokens"),
    ("POST", "/responses/input_tokens"): ("openai_responses", "count_tokens"),
    ("POST", "/v1/messages"): ("anthropic", "generate"),
    ("POST", "/v1/messages/count_tokens"): ("anthropic", "count_tokens"),
}


def split_secret(path: str) -> tuple[str, str | None]:
    """Takes the leading `/s/<secret>` off a path: (`/v1/messages`, secret), or the path itself and None."""
    if not path.startswith("/s/"):
        return path, None
    secret, slash, rest = path[3:].partition("/")
    return slash + rest or "/", secret or None


def secret_of(headers: Mapping[str, str], path: str) -> str | None:
    """The session's secret: the path's segment wins over an API key in the headers."""
    _, secret = split_secret(path)
    if secret is not None:
        return secret
    lower = {name.lower(): value for name, value in headers.items()}
    for name in _SECRET_HEADERS:
        if value := lower.get(name, "").strip():
            return value
    scheme, _, token = lower.get("authorization", "").strip().partition(" ")
    return (token.strip() or None) if scheme.lower() == "bearer" else None


def detect(method: str, path: str, headers: Mapping[str, str]) -> Route | None:
    """The route of a request, or None where no dialect has such an endpoint. The query string is ignored."""
    secret = secret_of(headers, path)
    bare, _ = split_secret(path.partition("?")[0])
    bare = bare.rstrip("/") or "/"
    method = method.upper()
    found = _ROUTES.get((method, bare))
    if found is not None:
        dialect, operation = found
        return Route(dialect=dialect, operation=operation, path=bare, secret=secret)
    if method in {"GET", "HEAD"}:
        dialect = (
            "anthropic"
            if any(name.lower() in {"anthropic-version", "x-api-key"} for name in headers)
            else "openai_chat"
        )
        if bare in {"/v1/models", "/models"} or bare.startswith("/v1/models/"):
            model = bare.removeprefix("/v1/models/") if bare.startswith("/v1/models/") else None
            return Route(dialect=dialect, operation="list_models", path=bare, secret=secret, model=model)
        if bare in {"/", "/v1", "/api/hello"}:
            return Route(dialect=dialect, operation="probe", path=bare, secret=secret)
    return None
