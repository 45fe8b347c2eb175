"""What every stage of every session on a worker uses; made once by the service, handed to the pools."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bus import Bus
from harnesses import Adapter, Installed
from schemas.records import SessionEventType
from stage_workers.admin import AdminClient
from stage_workers.facts import FactQueue
from stage_workers.guard import ProxyGuard
from stage_workers.model_socket.exchange import Budget
from stage_workers.proxies import ProxyView
from stage_workers.runtimes import RuntimeFactory
from stage_workers.sessions import Holdings, Session
from stage_workers.settings import WorkerSettings

Installer = Callable[[Adapter], Installed]
"""Makes sure that a harness is installed; blocks, so it is called in a thread. Raises InstallError."""


def now_ms() -> int:
    """The wall clock, in UTC epoch ms."""
    return time.time_ns() // 1_000_000


def logs_dir(state_dir: Path) -> Path:
    """Where the logs of all sessions are kept."""
    return state_dir / "logs"


@dataclass(slots=True, kw_only=True)
class Kit:
    """The worker's settings, ways out and helpers."""

    settings: WorkerSettings
    incarnation: str
    facts: FactQueue
    holdings: Holdings
    proxies: ProxyView
    admin: AdminClient
    guard: ProxyGuard
    budget: Budget
    runtimes: RuntimeFactory
    install: Installer
    bus: Bus
    """For what is read along, and for artifacts; facts go through `facts`, so that they keep their order."""
    nudge: Callable[[], None]
    """Says that slots or holdings changed, so that the next heartbeat shouldn't wait."""
    now_ms: Callable[[], int] = now_ms

    def tell(self, session: Session, kind: SessionEventType, **fields: object) -> None:
        """Puts a fact of a session in line, unless the session is lost: then it may contribute nothing more."""
        if not session.is_lost:
            self.facts.put(session.event(kind, self.now_ms(), **fields))
            self.nudge()

    def log_dir(self, session: Session) -> Path:
        """Where the logs of a session's attempt are kept."""
        return logs_dir(self.settings.state_dir) / session.session_id / f"attempt-{session.attempt}"
