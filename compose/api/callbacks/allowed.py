"""Where callbacks may go: only to hosts that the operator names, since whoever submits a task chooses the URL."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from compose.api.settings import ApiSettings

_PORTS: Final = {"http": 80, "https": 443}


def refusal(url: str, settings: ApiSettings) -> str:
    """Why this URL isn't called; '' when it may be.

    Names are trusted as the operator wrote them: a name that is allowed may resolve to any address, also an internal one.
    """
    if settings.callback_key is None or not settings.callback_hosts:
        return "this API makes no callbacks: its operator allows no host"
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").lower(), parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError as error:
        return f"this is no URL: {error}"
    if parts.scheme not in _PORTS or not host:
        return "it must be http://HOST… or https://HOST…"
    if parts.username is not None or parts.password is not None:
        return "it must not hold a user or a password"
    if not any(_matches(allowed.lower(), host, port) for allowed in settings.callback_hosts):
        return f"the host {host}:{port} isn't allowed"
    return ""


def _matches(allowed: str, host: str, port: int) -> bool:
    name, _, wanted = allowed.rpartition(":") if _has_port(allowed) else (allowed, "", "")
    if wanted and wanted != str(port):
        return False
    name = name.strip("[]")
    if name.startswith("*."):
        return host.endswith(name[1:]) and host != name[2:]
    return host == name


def _has_port(allowed: str) -> bool:
    """Whether an entry ends in a port; a bare IPv6 address has colons of its own."""
    _, colon, port = allowed.rpartition(":")
    return bool(colon) and port.isdigit() and (allowed.count(":") == 1 or "]:" in allowed)
