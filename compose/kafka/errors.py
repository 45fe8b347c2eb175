"""What can go wrong with a broker of our own."""

from __future__ import annotations


class KafkaUnavailable(RuntimeError):  # noqa: N818 - reads as the state that it reports
    """The local Kafka can't be had: Java, Maven, the jars, a port or the broker itself; the text says what to do."""
