"""How our Faust apps are made: one shape for all three, with every default that would lose a record switched off.

A processor says which topics it reads and which tables it keeps; `build_app` wires them to a Faust app whose one agent
hands each record to the processor's intake. A record is acknowledged when it is done and its table writes are on the brokers.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Collection, Coroutine, MutableMapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

import faust
from faust.types import EventT, StreamT

from bus import BusSettings, Delivery
from bus.settings import MAX_FETCH_BYTES, MAX_RECORD_BYTES
from schemas.topics import DEFAULT_PARTITIONS, Topic, changelog_topic
from stream_processors.acknowledge import Acknowledger, DurableTable
from stream_processors.intake import Intake
from stream_processors.recovery import CarefulConsumer, OrderedTableManager

Table = MutableMapping[bytes, bytes]
"""A Faust table of raw bytes; a write goes into the changelog partition of the event at hand."""


def drop(table: Table, key: bytes) -> None:
    """Delete a key that may not be there: Faust would write a tombstone for it all the same."""
    if key in table:
        del table[key]


COMMIT_INTERVAL_S: Final = 1.0
"""Short, so that little is processed again after a kill; what is committed are records whose table writes are on the brokers."""

SESSION_TIMEOUT_S: Final = 6.0
"""The lowest that brokers accept by default: after a kill -9 its successor waits that long for the partitions."""


class Processor(Protocol):
    """One stream processor: its wiring, and what it does with a record."""

    name: str
    """Also the app's id (behind the prefix) and the component of its dead letters."""
    topics: Sequence[str]
    table_names: Sequence[str]
    by_header: Collection[str]
    """Those of its topics of which it reads the headers only: their values come unresolved and undecoded."""

    def bind(self, tables: dict[str, Table]) -> None:
        """Take the tables of a fresh app."""
        ...

    async def handle(self, delivery: Delivery, raw: bytes) -> None:
        """Handle one record; see `intake.Handle`."""
        ...

    def done(self, delivery: Delivery) -> None:
        """A record was handled or buried."""
        ...

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        """What runs beside the agent while the app is up (timers, views); cancelled when it stops."""
        ...

    def assigned(self, partitions: Collection[int]) -> None:
        """These partitions of its topics, and so these rows of its tables, are ours from now on, and no others.

        None while a rebalance goes on, and until the tables of what it brought are read back. (Rows of partitions that
        have gone stay in a table.)
        """
        ...


def build_app(
    settings: BusSettings, processor: Processor, intake: Intake, partitions: int
) -> tuple[faust.App, Acknowledger]:
    """A Faust app for one processor, whose topics have `partitions`; the acknowledger has to run beside it."""
    app = faust.App(
        id=settings.group(processor.name),
        broker=[f"kafka://{address.strip()}" for address in settings.bootstrap.split(",")],
        broker_client_id=settings.client_id,
        broker_credentials=_credentials(settings),
        broker_commit_interval=COMMIT_INTERVAL_S,
        broker_session_timeout=SESSION_TIMEOUT_S,
        broker_heartbeat_interval=SESSION_TIMEOUT_S / 3,
        # A held partition or an outage isn't a livelock: our own health tells.
        broker_max_poll_interval=24 * 3600.0,
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=MAX_FETCH_BYTES,
        producer_acks=-1,
        # Table writes come together already: see `Acknowledger`.
        producer_linger=0,
        producer_compression_type="zstd",
        producer_max_request_size=MAX_RECORD_BYTES,
        processing_guarantee="at_least_once",
        store="memory://",
        table_standby_replicas=0,
        topic_allow_declare=False,
        topic_disable_leader=True,
        topic_partitions=partitions,
        # A partition that is held would keep a rebalance waiting.
        stream_wait_empty=False,
        web_enabled=False,
        autodiscover=False,
        Table=DurableTable,
        TableManager=OrderedTableManager,
        logging_config=None,
        datadir=str(Path(tempfile.gettempdir()) / "polynya-faust"),
    )
    # The transport asks itself for the class of its consumers.
    cast("Any", app.transport).Consumer = CarefulConsumer
    acknowledger = Acknowledger()
    processor.bind({name: _table(app, name, partitions, acknowledger) for name in processor.table_names})
    topic = app.topic(
        *(settings.physical(name) for name in processor.topics),
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
        partitions=partitions,
    )

    async def agent(stream: StreamT[bytes]) -> None:
        async for event in _events(stream):
            if await intake.take(delivery_of(settings, event)):
                await acknowledger.done(event)

    app.agent(topic, name=processor.name)(agent)

    _tell_assignments(settings, app, processor, acknowledger)
    return app, acknowledger


def _tell_assignments(settings: BusSettings, app: faust.App, processor: Processor, acknowledger: Acknowledger) -> None:
    """Tell the processor which partitions it has: none from the revocation on, the new ones once the tables are read back."""
    source = settings.physical(processor.topics[0])
    processor.assigned(())

    async def revoked(*_: object, **__: object) -> None:
        processor.assigned(())
        # Whoever gets them reads the tables back: what we still hold would come behind that.
        await acknowledger.flush_quietly()

    async def recovered() -> None:
        processor.assigned({tp.partition for tp in app.consumer.assignment() if tp.topic == source})

    # By default Faust keeps receivers by weak reference, and this one would be gone at once.
    app.on_partitions_revoked.connect(revoked, weak=False)
    # Every table's callbacks run when all tables are read back; one is enough.
    app.tables[processor.table_names[0]].on_recover(recovered)


def _events(stream: StreamT[bytes]) -> AsyncIterator[EventT[bytes]]:
    """The stream's events, acknowledged by us only."""
    events: AsyncIterator[EventT[bytes]] = cast("Any", stream).noack().events()
    return events


def _table(app: faust.App, name: str, partitions: int, acknowledger: Acknowledger) -> Table:
    # Faust chooses the raw serialiser by these types.
    table = app.Table(name, key_type=bytes, value_type=bytes, partitions=partitions)
    assert isinstance(table, DurableTable)
    table.acknowledger = acknowledger
    return cast("Table", table)


def delivery_of(settings: BusSettings, event: EventT[bytes]) -> Delivery:
    """A Faust event as the delivery that the rest of the code knows."""
    message = event.message
    value = message.value
    return Delivery(
        topic=settings.logical(message.topic),
        partition=message.partition,
        offset=message.offset,
        timestamp_ms=int(message.timestamp * 1000),
        key=message.key,
        value=value or b"",
        header_list=tuple(cast("list[tuple[str, bytes]]", message.headers or ())),
        is_tombstone=value is None,
    )


def _credentials(settings: BusSettings) -> Any:
    ssl_context = settings.client_options().get("ssl_context")
    if settings.sasl_password is not None and settings.security_protocol.startswith("SASL"):
        return faust.SASLCredentials(
            username=settings.sasl_username,
            password=settings.sasl_password.get_secret_value(),
            mechanism=settings.sasl_mechanism,
            ssl_context=ssl_context,
        )
    return faust.SSLCredentials(context=ssl_context) if ssl_context is not None else None


_TABLES: Final[dict[str, tuple[str, ...]]] = {
    "assembler": ("records", "sessions"),
    "joiner": ("sessions", "trajectories"),
    "orchestrator": ("sessions", "tasks", "groups", "group_tasks"),
}
"""The tables of every processor, for the topics that they need."""


def changelog_topics(partitions: int = DEFAULT_PARTITIONS) -> list[Topic]:
    """The changelog topics of all three apps, for the topic admin to create: brokers create none by themselves."""
    return [changelog_topic(app, table, partitions) for app, tables in _TABLES.items() for table in tables]
