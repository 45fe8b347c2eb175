"""The thin layer between the parts and Kafka: publish, consume in a lane, read along, set aside what can't be handled.

In: records of `schemas`. Out: deliveries, at least once, in order within a partition. `connect(settings)` gives the bus on
Kafka, `bus.memory.MemoryBus` the same interface without a broker. Topics are named as in the catalogue everywhere; the
prefix that isolates tenants exists only inside this package. `bus.admin` makes the cluster's topics what the catalogue says.
"""

from __future__ import annotations

from bus.blobs import BlobStore
from bus.dead_letters import DeadLetter, DeadLetters, dead_letter_name
from bus.deliveries import Delivery, Position, Start
from bus.errors import (
    BlobCorruptError,
    BlobMissingError,
    BlobStoreUnavailableError,
    BusError,
    BusRefusedError,
    BusUnavailableError,
    PoisonError,
    RecordTooLargeError,
    TopicMissingError,
    TopicsRefusedError,
    is_retriable,
)
from bus.handling import Problem
from bus.kafka import KafkaBus, connect
from bus.lane import Lane, LaneHealth
from bus.protocol import Bus, EventLog, Handler
from bus.reader import Reader
from bus.sessions import SessionCall, read_session, since_opening
from bus.settings import BusSettings

__all__ = [
    "BlobCorruptError",
    "BlobMissingError",
    "BlobStore",
    "BlobStoreUnavailableError",
    "Bus",
    "BusError",
    "BusRefusedError",
    "BusSettings",
    "BusUnavailableError",
    "DeadLetter",
    "DeadLetters",
    "Delivery",
    "EventLog",
    "Handler",
    "KafkaBus",
    "Lane",
    "LaneHealth",
    "PoisonError",
    "Position",
    "Problem",
    "Reader",
    "RecordTooLargeError",
    "SessionCall",
    "Start",
    "TopicMissingError",
    "TopicsRefusedError",
    "connect",
    "dead_letter_name",
    "is_retriable",
    "read_session",
    "since_opening",
]
