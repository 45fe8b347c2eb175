"""Where a model socket's bytes go: the seam between the relay, which knows sockets, and the lease's keeper, which knows proxies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Upstream:
    """A proxy's listener as one writer of a lease may use it. Another writer is another upstream, at whatever address."""

    host: str
    port: int
    writer: int


class RouteOver(Exception):  # noqa: N818  # control flow, not a crash
    """There is no proxy any more, and there won't be one: the session is over."""


class Route(Protocol):
    """Says which proxy is the session's."""

    def peek(self) -> Upstream | None:
        """The proxy now; None while another one is looked for."""

    async def current(self) -> Upstream:
        """The proxy, as soon as there is one. Raises RouteOver."""

    async def verified(self, upstream: Upstream) -> Upstream:
        """The proxy, after a look at whether this one still serves the session: it failed, or denied our secret.

        Raises RouteOver.
        """
