"""What can go wrong on the bus. Whether to try again is a property of the class."""

from __future__ import annotations


class BusError(Exception):
    """Root of the bus's errors."""

    is_retriable: bool = False
    """Whether the same call may succeed later, with nothing changed on this side."""

    reason: str = "bus_error"
    """The word under which a dead letter names it."""


class BusUnavailableError(BusError):
    """Kafka didn't answer, or not before the deadline. A record that timed out may still arrive; its id is the same."""

    is_retriable = True
    reason = "bus_unavailable"


class BusRefusedError(BusError):
    """Kafka answered no, and will again: an authorisation, a setting, a record it can't take."""

    reason = "bus_refused"


class TopicMissingError(BusError):
    """The topic isn't on the cluster, which creates none by itself. Retriable, since an operator can declare it."""

    is_retriable = True
    reason = "topic_missing"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} doesn't exist on this cluster: run `polynya topics apply`, which creates it")
        self.topic = topic


class RecordTooLargeError(BusError):
    """A raw value is larger than a record may be, and raw values don't travel by claim check."""

    reason = "record_too_large"


class PoisonError(BusError):
    """For handlers: this record can never be handled. `reason` is one word or two, as in `id_conflict`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class BlobMissingError(BusError):
    """A claim check names a blob that isn't there, even after some patience."""

    reason = "blob_missing"


class BlobCorruptError(BusError):
    """A blob's bytes aren't those that its name promises, or a claim check is malformed."""

    reason = "blob_corrupt"


class BlobStoreUnavailableError(BusError):
    """The blob store didn't answer."""

    is_retriable = True
    reason = "blob_store_unavailable"


class TopicsRefusedError(BusError):
    """The cluster's topics contradict the catalogue in a way that nothing may change in place."""

    reason = "topics_refused"


def is_retriable(error: BaseException) -> bool:
    """Whether trying the same record again makes sense: what the error's class says, else whether a connection failed."""
    said = getattr(error, "is_retriable", None)
    if said is None:
        said = getattr(error, "retriable", None)  # aiokafka's word
    return bool(said) if isinstance(said, bool) else isinstance(error, TimeoutError | ConnectionError)
