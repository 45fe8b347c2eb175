"""How others learn that a proxy is there: its addresses, its heartbeat on the bus, and the file with its ports."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from bus import EventLog
from capture_proxy.admin import Admin
from capture_proxy.mitm import Listener
from capture_proxy.ports import now_ms
from capture_proxy.recorder import Recorder
from capture_proxy.settings import ProxySettings
from schemas.records import Heartbeat, Held, Stage

log = structlog.get_logger(__name__)


class Presence:
    """What a proxy that runs says of itself."""

    def __init__(
        self, settings: ProxySettings, incarnation: str, recorder: Recorder, listener: Listener, admin: Admin
    ) -> None:
        self._settings = settings
        self._incarnation = incarnation
        self._recorder = recorder
        self._listener = listener
        self._admin = admin
        self.authority_pem = ""
        """The certificate (public) that those who use the forward listener must trust; empty where there is none."""
        self.is_stopping = False

    @property
    def data_address(self) -> str:
        """The data listener's URL."""
        return f"http://{self._settings.advertise_host or self._settings.host}:{self._listener.port}"

    @property
    def forward_address(self) -> str:
        """The forward listener's URL, for `HTTPS_PROXY`; empty where there is none."""
        if not self._listener.forward_port:
            return ""
        return f"http://{self._settings.advertise_host or self._settings.forward_host}:{self._listener.forward_port}"

    @property
    def admin_address(self) -> str:
        """The admin listener's URL."""
        return f"http://{self._settings.advertise_host or self._settings.admin_host}:{self._admin.port}"

    def heartbeat(self, seq: int) -> Heartbeat:
        """The `seq`-th heartbeat, as of now."""
        return Heartbeat(
            node_id=self._settings.proxy_id,
            role="proxy",
            incarnation=self._incarnation,
            data_address=self.data_address,
            admin_address=self.admin_address,
            holds=[
                Held(session_id=lease.session_id, attempt=lease.attempt, lease_id=lease.lease_id, stage=Stage.RUNNING)
                for lease in self._recorder.book.active()
            ],
            is_draining=self._recorder.is_draining,
            interval_s=self._settings.heartbeat_s,
            seq=seq,
            details=self._details(),
            at=now_ms(),
        )

    def _details(self) -> dict[str, Any]:
        details: dict[str, Any] = {}
        if self.forward_address:  # how a harness is sent through it
            details["forward"] = {"address": self.forward_address, "ca_pem": self.authority_pem}
        if self.is_stopping:
            details["is_stopping"] = True
        return details

    def ports(self) -> dict[str, Any]:
        """What whoever started the process needs, to find it."""
        return {
            "pid": os.getpid(),
            "proxy_id": self._settings.proxy_id,
            "incarnation": self._incarnation,
            "host": self._settings.host,
            "port": self._listener.port,
            "admin_host": self._settings.admin_host,
            "admin_port": self._admin.port,
            "data_address": self.data_address,
            "forward_address": self.forward_address,
            "admin_address": self.admin_address,
        }


class Pulse:
    """Publishes a heartbeat every `every_s` seconds, and at once when something changed. `make(seq)` says what it says."""

    def __init__(self, bus: EventLog, make: Callable[[int], Heartbeat], *, every_s: float) -> None:
        self._bus = bus
        self._make = make
        self._every_s = every_s
        self._seq = 0
        self._now = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts beating."""
        self._task = asyncio.create_task(self._beat(), name="heartbeat")

    def beat_now(self) -> None:
        """The next beat comes at once."""
        self._now.set()

    async def stop(self) -> None:
        """Ends it, also when it never began."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _beat(self) -> None:
        while True:
            self._now.clear()  # before the beat is made: what changes while it is on its way makes another one
            self._seq += 1
            try:
                async with asyncio.timeout(self._every_s * 5):
                    await self._bus.publish(self._make(self._seq))
            except Exception as exc:  # noqa: BLE001 - the heartbeat's boundary: a missed beat says what it should say
                log.warning("heartbeat.missed", error=repr(exc))
            try:
                async with asyncio.timeout(self._every_s):
                    await self._now.wait()
            except TimeoutError:
                pass


def write_ports(path: Path, ports: Mapping[str, Any]) -> None:
    """Writes the file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    half = path.with_suffix(f".{os.getpid()}.tmp")
    half.write_text(json.dumps(ports))
    half.replace(path)
