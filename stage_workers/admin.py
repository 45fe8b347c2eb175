"""The client of a proxy's admin listener: opens and seals leases with the worker's credential."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import aiohttp
from pydantic import SecretStr

from schemas.records import SessionSpec

# One request: an open is answered after one fsync, a seal after the lease's last calls are drained.
_OPEN_S = 10.0
_SEAL_S = 30.0
_PROBE_S = 3.0


class ProxyUnavailableError(Exception):
    """The proxy gave no answer, or said that it can't now. `is_certain`: it surely did nothing (no connection, or it says so)."""

    is_retriable = True

    def __init__(self, message: str, *, is_certain: bool = False) -> None:
        super().__init__(message)
        self.is_certain = is_certain


class ProxyRefusedError(Exception):
    """The proxy said no, and will again."""

    is_retriable = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What opening a lease needs: only the hash of its secret leaves the worker."""

    session_id: str
    attempt: int
    lease_id: str
    secret_hash: str
    writer: int
    takes_over: int = 0
    since_at: int = 0
    """When the lease's first writer was opened (UTC epoch ms), for a take-over's search."""
    can_move: bool = True
    """A proxy that stops waits a moment for us to open the next writer elsewhere."""
    spec: SessionSpec


class AdminClient:
    """Speaks to the admin listeners of all proxies; use as an async context manager."""

    def __init__(self, key: SecretStr) -> None:
        self._key = key
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # No bound: calls that a frozen proxy keeps waiting must not stand in line before those to one that is well.
        connector = aiohttp.TCPConnector(limit=0)
        headers = {"Authorization": f"Bearer {self._key.get_secret_value()}"}
        self._http = aiohttp.ClientSession(connector=connector, headers=headers)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._http is not None:
            await self._http.close()

    async def open(self, address: str, opening: Opening) -> Mapping[str, object]:
        """Opens a lease at the proxy whose admin listener is at `address`; answered once that is durable there.

        Raises:
            ProxyUnavailableError: no usable answer; trying the same again is safe.
            ProxyRefusedError: the proxy doesn't open this lease.
        """
        return await self._call("POST", f"{address.rstrip('/')}/leases/open", _OPEN_S, dataclasses.asdict(opening))

    async def seal(self, address: str, lease_id: str, writer: int, reason: str) -> Mapping[str, object]:
        """Seals a writer of a lease; idempotent. Raises as `open`."""
        body = {"lease_id": lease_id, "writer": writer, "reason": reason}
        return await self._call("POST", f"{address.rstrip('/')}/leases/seal", _SEAL_S, body)

    async def lease(self, address: str, lease_id: str, writer: int, within_s: float) -> Mapping[str, object]:
        """What the proxy says of a writer: `state`, and how its `last_call` ended. Raises as `open`; refused: it knows none such."""
        return await self._call("GET", f"{address.rstrip('/')}/leases/{lease_id}/{writer}", within_s, None)

    async def incarnation(self, address: str, within_s: float) -> str:
        """Which incarnation answers there, well or not. Raises as `open`."""
        answer = await self._call("GET", f"{address.rstrip('/')}/health", within_s, None, also=frozenset({503}))
        return str(answer.get("incarnation", ""))

    async def is_alive(self, address: str) -> bool:
        """Whether the proxy answers at all."""
        try:
            await self._call("GET", f"{address.rstrip('/')}/health", _PROBE_S, None)
        except ProxyUnavailableError as error:
            return not error.is_certain
        except ProxyRefusedError:
            return True
        return True

    async def _call(
        self, method: str, url: str, timeout_s: float, body: object, *, also: frozenset[int] = frozenset()
    ) -> Mapping[str, object]:
        """`also`: statuses that are answers like 200."""
        if self._http is None:
            raise RuntimeError("AdminClient is used outside of its `async with`")
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._http.request(method, url, json=body, timeout=timeout) as response:
                text = await response.text()
                if response.status in {400, 401, 403, 404, 409, 422}:
                    raise ProxyRefusedError(f"{url} answered {response.status}: {text[:300]}")
                if response.status != 200 and response.status not in also:
                    said = f"{url} answered {response.status}: {text[:300]}"
                    raise ProxyUnavailableError(said, is_certain=_did_nothing(text))
                answer = await response.json(content_type=None) if text else {}
                return answer if isinstance(answer, Mapping) else {}
        except aiohttp.ClientConnectorError as error:
            raise ProxyUnavailableError(f"{url}: {error}", is_certain=True) from error
        except (TimeoutError, aiohttp.ClientError, ValueError) as error:
            raise ProxyUnavailableError(f"{url}: {type(error).__name__} {error}") from error


def _did_nothing(text: str) -> bool:
    """Whether an answer says that nothing was done (a proxy that drains, or whose spool is full)."""
    try:
        answer = json.loads(text)
    except ValueError:
        return False
    return isinstance(answer, Mapping) and answer.get("is_certain") is True
