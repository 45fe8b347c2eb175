"""What commands that read the past have in common: the log or an archive, and points in time."""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from bus.protocol import LogReader
from compose.cli.connect import open_bus
from compose.errors import CommandError, usage
from compose.settings import load

_AGO = re.compile(r"(\d+)(s|m|h|d)")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@asynccontextmanager
async def open_log(archive: Path | None) -> AsyncIterator[LogReader]:
    """The running stack's log, or an archive of one."""
    if archive is None:
        async with open_bus(load()) as bus:
            yield bus
        return
    from bus.archive import ArchiveError, ArchiveLog

    try:
        log = ArchiveLog(archive)
    except ArchiveError as exc:
        raise usage(str(exc)) from exc
    try:
        yield log
    except ArchiveError as exc:
        raise CommandError(str(exc)) from exc


def point_in_time(option: str, text: str | None) -> int | None:
    """UTC epoch ms of `earliest`/`latest` (None: no limit), epoch ms, ISO 8601 or `2h` (ago); a usage error otherwise."""
    if text is None or text in ("earliest", "latest"):
        return None
    if text.isdigit():
        return int(text)
    if ago := _AGO.fullmatch(text):
        return int(time.time() * 1000) - int(ago[1]) * _UNIT_MS[ago[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise usage(
            f"{option} {text!r} is no point in time",
            hint=f"{option} 2026-05-01T12:00:00Z, {option} 2h, or epoch milliseconds",
        ) from exc
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
