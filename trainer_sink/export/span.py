"""What of a topic an export reads: offsets by partition, and what tells the log from another one of the same name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Final, Self

from bus.deliveries import Delivery, Start
from bus.errors import BusRefusedError
from bus.protocol import LogReader
from trainer_sink.errors import SinkError

TOPIC: Final = "trajectory.scored"


class ExportSourceError(SinkError):
    """The log isn't the one that an export was begun from, or no longer has what the export needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The records [begin, end) of each partition that ever had one.

    `last` names the last one of each: another log has another one there.
    """

    topic: str = TOPIC
    begin: Mapping[int, int] = field(default_factory=dict)
    end: Mapping[int, int] = field(default_factory=dict)
    last: Mapping[int, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values; partitions as text, in order."""
        partitions = {
            str(n): {"from": self.begin[n], "to": self.end[n], "last": self.last.get(n, "")} for n in sorted(self.end)
        }
        return {"topic": self.topic, "partitions": partitions}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Read `to_json`'s values. Raises KeyError, TypeError or ValueError when they are none."""
        parts = {int(n): part for n, part in value["partitions"].items()}
        return cls(
            topic=str(value["topic"]),
            begin={n: int(p["from"]) for n, p in parts.items()},
            end={n: int(p["to"]) for n, p in parts.items()},
            last={n: str(p["last"]) for n, p in parts.items() if p["last"]},
        )


class SpanReader:
    """Reads scored trajectories from `start` to the present end, or to `until`, and knows afterwards what it read."""

    def __init__(self, log: LogReader, *, start: Start = "earliest", until: Mapping[int, int] | None = None) -> None:
        self._log = log
        self._start = start
        self._until = until
        self.span = Span()

    async def records(self) -> AsyncGenerator[Delivery, None]:
        """The records, partition by partition as the log gives them. Raises ExportSourceError for offsets that aren't there."""
        ends = await self._log.end_offsets(TOPIC)
        if self._until is not None:
            ends = _bounded(ends, self._until)
        given = self._start if isinstance(self._start, Mapping) else {}
        begin = {n: offset for (topic, n), offset in given.items() if topic == TOPIC and n in ends}
        for number, offset in begin.items():
            if offset > ends[number]:
                raise ExportSourceError(f"{TOPIC}[{number}] is read up to {ends[number]}: it can't begin at {offset}")
        last: dict[int, str] = {}
        tail = self._log.tail([TOPIC], start=self._start, until_end=True)
        try:
            async with aclosing(tail) as deliveries:
                async for delivery in deliveries:
                    number = delivery.partition
                    if delivery.offset >= ends.get(number, 0):
                        continue  # came after the export began
                    begin.setdefault(number, delivery.offset)
                    last[number] = fingerprint(delivery)
                    yield delivery
        except BusRefusedError as exc:
            raise ExportSourceError(
                f"{exc} An export of what is left is a new one: choose another place, or --archive."
            ) from exc
        ends = {n: end for n, end in ends.items() if end}  # an archive doesn't know of the others
        self.span = Span(begin={n: begin.get(n, end) for n, end in ends.items()}, end=ends, last=last)


def fingerprint(delivery: Delivery) -> str:
    """What tells a record from any other: its id, else its time and key."""
    name = delivery.headers.get("ce_id", b"").decode(errors="replace")
    return name or f"{delivery.timestamp_ms}:{(delivery.key or b'').hex()}"


async def check_same_log(log: LogReader, span: Span) -> None:
    """Raise ExportSourceError unless the log goes on from `span`: no shorter, with the same records where the span ends.

    Records that retention has taken since can't be compared; the rest still are.
    """
    ends = await log.end_offsets(span.topic)
    for number, end in span.end.items():
        if ends.get(number, 0) < end:
            raise ExportSourceError(
                f"{span.topic}[{number}] ends at {ends.get(number, 0)}, the export has it up to {end}: it is another log, or "
                "the topic was made anew; export to another place"
            )
        if number in span.last and (found := await _at(log, span.topic, number, end - 1)) is not None:
            if fingerprint(found) == span.last[number]:
                continue
            raise ExportSourceError(
                f"{found.where} isn't the record that the export ended with: it is another log, or the topic was made anew; "
                "export to another place"
            )


async def _at(log: LogReader, topic: str, partition: int, offset: int) -> Delivery | None:
    tail = log.tail([topic], start={(topic, partition): offset}, partitions=[partition], until_end=True, resolved=False)
    try:
        async with aclosing(tail) as deliveries:
            async for delivery in deliveries:
                return delivery if delivery.offset == offset else None
    except BusRefusedError:
        return None
    return None


def _bounded(ends: Mapping[int, int], until: Mapping[int, int]) -> dict[int, int]:
    for number, offset in until.items():
        if number not in ends or offset > ends[number]:
            raise ExportSourceError(
                f"{TOPIC}[{number}] ends at {ends.get(number, 'nothing')}, before {offset}: give an end that the log has"
            )
    return {n: min(end, until.get(n, end)) for n, end in ends.items()}
