"""The admin listener: opens and seals leases with the operator's key, never with a lease's secret."""

from __future__ import annotations

import dataclasses
import hmac
from collections.abc import Callable
from typing import Any

import structlog
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from capture_proxy.leases import Lease, LeaseRefusalError
from capture_proxy.recorder import Recorder
from schemas.records import SessionSpec

log = structlog.get_logger(__name__)


class OpenRequest(BaseModel):
    """Body of `POST /leases/open`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    session_id: str = Field(min_length=1)
    attempt: int = Field(ge=1)
    lease_id: str = Field(min_length=1)
    secret_hash: str = Field(pattern=r"^[0-9a-f]{64}$")
    writer: int = Field(default=1, ge=1)
    takes_over: int = Field(default=0, ge=0)
    """The writer before this one (0: the one with the number below); its calls are read back before answers go on from them."""
    since_at: int = Field(default=0, ge=0)
    """When writer 1 opened (UTC epoch ms); 0: unknown. Spares the search through the whole log at a take-over."""
    can_move: bool = False
    """The opener moves the lease to another proxy when this one says that it stops."""
    spec: SessionSpec


class SealRequest(BaseModel):
    """Body of `POST /leases/seal`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lease_id: str = Field(min_length=1)
    writer: int = Field(default=1, ge=1)
    reason: str = "sealed"


class Admin:
    """`POST /leases/open`, `POST /leases/seal`, `GET /leases`, `GET /leases/LEASE_ID/WRITER`, `GET /health`."""

    def __init__(self, recorder: Recorder, key: str, *, health: Callable[[], dict[str, Any]]) -> None:
        self._recorder = recorder
        self._key = key.encode()
        self._health = health
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listens; raises OSError when the port can't be had."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_post("/leases/open", self._open)
        app.router.add_post("/leases/seal", self._seal)
        app.router.add_get("/leases", self._leases)
        app.router.add_get("/leases/{lease_id}/{writer:[0-9]+}", self._lease)
        app.router.add_get("/health", self._get_health)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """Stops listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), b"Bearer " + self._key):
            return _error(401, "send the admin key as `Authorization: Bearer …` (POLYNYA_ADMIN_KEY)")
        try:
            response: web.StreamResponse = await handler(request)
        except LeaseRefusalError as exc:
            return _error(exc.status, str(exc), is_certain=exc.is_certain)
        except ValidationError as exc:
            first = exc.errors(include_url=False, include_input=False)[0]
            return _error(400, f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}")
        return response

    async def _open(self, request: web.Request) -> web.Response:
        body = OpenRequest.model_validate_json(await request.read())
        lease = Lease(
            session_id=body.session_id,
            lease_id=body.lease_id,
            attempt=body.attempt,
            writer=body.writer,
            secret_hash=body.secret_hash,
            spec=body.spec,
            since_at=body.since_at,
            can_move=body.can_move,
        )
        opened = await self._recorder.open(lease, takes_over=body.takes_over)
        return web.json_response({"lease_id": opened.lease_id, "writer": opened.writer})

    async def _seal(self, request: web.Request) -> web.Response:
        body = SealRequest.model_validate_json(await request.read())
        lease = self._recorder.book.find(body.lease_id, body.writer)
        if lease is None:
            raise LeaseRefusalError(f"writer {body.writer} of lease {body.lease_id} isn't known here", status=404)
        last_seq = await self._recorder.seal(lease, body.reason)
        return web.json_response(
            {
                "lease_id": lease.lease_id,
                "writer": lease.writer,
                "last_seq": last_seq,
                "last_call": _last_call(lease),
            }
        )

    async def _lease(self, request: web.Request) -> web.Response:
        lease_id, writer = request.match_info["lease_id"], int(request.match_info["writer"])
        lease = self._recorder.book.find(lease_id, writer)
        if lease is None:
            raise LeaseRefusalError(f"writer {writer} of lease {lease_id} isn't known here", status=404)
        return web.json_response({**_facts(lease), "last_call": _last_call(lease)})

    async def _leases(self, _request: web.Request) -> web.Response:
        return web.json_response({"leases": [_facts(lease) for lease in self._recorder.book.active()]})

    async def _get_health(self, _request: web.Request) -> web.Response:
        report = self._health()
        return web.json_response(report, status=200 if report.get("is_healthy") else 503)


def _facts(lease: Lease) -> dict[str, object]:
    return {
        "session_id": lease.session_id,
        "lease_id": lease.lease_id,
        "attempt": lease.attempt,
        "writer": lease.writer,
        "state": str(lease.state),
        "last_seq": lease.last_seq,
        "in_flight": len(lease.unrecorded),
        "opened_at": lease.opened_at,
    }


def _last_call(lease: Lease) -> dict[str, object] | None:
    """How the lease's latest call ended: `call_seq` is that of the call, or of the one before it where it was refused."""
    return None if lease.last_end is None else dataclasses.asdict(lease.last_end)


def _error(status: int, message: str, *, is_certain: bool = False) -> web.Response:
    certain = {"is_certain": True} if is_certain else {}
    return web.json_response({"error": message, **certain}, status=status)
