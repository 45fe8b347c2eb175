"""Which dialect and operation a request is for, and which secret it carries."""

from __future__ import annotations

from collections.abc import Mapping

from capture_proxy.dialects.base import Operation, Route
from capture_proxy.dialects.google.route import find_route, key_of

_SECRET_HEADERS = ("x-api-key", "x-goog-api-key")

_SIGNS = (
    ("google", {"x-goog-api-key", "x-goog-api-client"}),
    ("anthropic", {"anthropic-version", "x-api-key"}),
)
"""Headers that only one vendor's clients send."""

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
    """The session's secret: the path's segment wins over an API key in the headers, and that over one in the query."""
    _, secret = split_secret(path)
    if secret is not None:
        return secret
    lower = {name.lower(): value for name, value in headers.items()}
    for name in _SECRET_HEADERS:
        if value := lower.get(name, "").strip():
            return value
    scheme, _, token = lower.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return key_of(path.partition("?")[2])


def likely_dialect(path: str, headers: Mapping[str, str]) -> str:
    """Whose client sends this, where its path alone doesn't tell: for endpoints of several vendors, and for errors."""
    names = {name.lower() for name in headers}
    for dialect, signs in _SIGNS:
        if names & signs:
            return dialect
    bare, _, query = path.partition("?")
    return "google" if split_secret(bare)[0].startswith("/v1beta/") or key_of(query) else "openai_chat"


def hint_of(path: str) -> str:
    """What a path that isn't an endpoint was probably meant to be: for the end of an error message, or ''."""
    sent, _ = split_secret(path.partition("?")[0])
    bare = "/" + "/".join(filter(None, sent.split("/")))
    if bare.startswith(("/v1/responses/", "/responses/")):
        return "; responses aren't kept here: continue one with previous_response_id"
    tails = {known.removeprefix("/v1"): known for _, known in _ROUTES if known.startswith("/v1/")}
    meant = next((known for tail, known in tails.items() if bare.endswith(tail)), None)
    return f"; send a POST to {meant}, behind /s/<secret> where the secret isn't the API key" if meant else ""


def detect(method: str, path: str, headers: Mapping[str, str]) -> Route | None:
    """The route of a request, or None where no dialect has such an endpoint. Of the query only the Google dialect reads anything."""
    secret = secret_of(headers, path)
    sent, _, query = path.partition("?")
    bare, _ = split_secret(sent)
    bare = bare.rstrip("/") or "/"
    method = method.upper()
    found = _ROUTES.get((method, bare))
    if found is not None:
        dialect, operation = found
        return Route(dialect=dialect, operation=operation, path=bare, secret=secret)
    dialect = likely_dialect(path, headers)
    route = find_route(method, f"{bare}?{query}", secret, is_ours=dialect == "google")
    if route is not None:
        return route
    if method in {"GET", "HEAD"}:
        if bare in {"/v1/models", "/models"} or bare.startswith("/v1/models/"):
            model = bare.removeprefix("/v1/models/") if bare.startswith("/v1/models/") else None
            return Route(dialect=dialect, operation="list_models", path=bare, secret=secret, model=model)
        if bare in {"/", "/v1", "/api/hello"}:
            return Route(dialect=dialect, operation="probe", path=bare, secret=secret)
    return None
