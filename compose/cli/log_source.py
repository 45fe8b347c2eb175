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
_DATE_DIGITS = 8
"""20260501 is a date; as epoch milliseconds it would be a morning of 1970."""
_MS_DIGITS = 12
"""Epoch milliseconds since March 1973; fewer are seconds, years or slips. 0 alone is the beginning."""
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


def duration_s(option: str, text: str) -> float:
    """Seconds of `90s`, `30m`, `12h` or `7d`; a usage error otherwise."""
    if (ago := _AGO.fullmatch(text)) is None:
        raise usage(f"{option} {text!r} is no span of time", hint=f"{option} 90s, {option} 12h or {option} 7d")
    return int(ago[1]) * _UNIT_MS[ago[2]] / 1000


def point_in_time(option: str, text: str | None) -> int | None:
    """UTC epoch ms of ISO 8601, `2h` (ago) or epoch ms; None for no limit (`earliest`, of `--to` `latest`); else a usage error."""
    if text is None or text == ("latest" if option == "--to" else "earliest"):
        return None
    if ago := _AGO.fullmatch(text):
        return int(time.time() * 1000) - int(ago[1]) * _UNIT_MS[ago[2]]
    if text.isdecimal() and len(text) != _DATE_DIGITS:
        if text != "0" and len(text) < _MS_DIGITS:
            raise usage(
                f"{option} {text!r} is no point in time: epoch milliseconds have {_MS_DIGITS} digits or more",
                hint=_hint(option),
            )
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise usage(f"{option} {text!r} is no point in time", hint=_hint(option)) from exc
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def time_span(from_time: str | None, to_time: str | None) -> tuple[int | None, int | None]:
    """What `--from` and `--to` say, in UTC epoch ms; a usage error also for a span that ends before it begins."""
    begin, end = point_in_time("--from", from_time), point_in_time("--to", to_time)
    if begin is not None and end is not None and begin >= end:
        raise usage(f"--from {from_time} isn't before --to {to_time}: nothing lies between them")
    return begin, end


def _hint(option: str) -> str:
    return f"{option} 2026-05-01T12:00:00Z, {option} 2026-05-01, {option} 2h, or epoch milliseconds"
