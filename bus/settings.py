"""Everything a process tells its Kafka clients, in one place: the safe defaults live here and nowhere else."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final, Literal

from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

CLAIM_CHECK_BYTES: Final = 256 * 1024
"""A larger value travels as a blob: small records keep brokers, fetches and compaction quick."""

MAX_RECORD_BYTES: Final = 2 * 1024 * 1024
"""The largest record on the bus, uncompressed, with key and headers. Only raw values come near it."""

MAX_FETCH_BYTES: Final = 2 * MAX_RECORD_BYTES
"""Per partition and fetch. It must hold the largest record, or a consumer stands still at that one."""

MAX_BATCH_BYTES: Final = 256 * 1024
"""The producer's batch: the client's default of 16 KiB sends each of our records alone."""


def _default_blob_url() -> str:
    return (Path.cwd() / ".polynya" / "blobs").as_uri()


class BusSettings(BaseModel):
    """How to reach Kafka and the blob store. Frozen; only the command line reads the environment to make one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap: str = "127.0.0.1:9092"
    """Kafka's addresses, `host:port`, comma-separated."""
    topic_prefix: str = Field(default="", pattern=r"^[a-zA-Z0-9._-]{0,100}$")
    """Put before every topic and every group: isolates tenants and tests on one cluster."""
    blob_url: str = Field(default_factory=_default_blob_url)
    """Where values above the claim-check limit go: `file:///…`, `s3://bucket/path`, any fsspec URL."""
    client_id: str = "polynya"
    """How this process calls itself in the brokers' logs."""

    publish_deadline_s: float = Field(default=300.0, gt=0)
    """How long a publish goes on trying through an outage before it raises."""
    connect_deadline_s: float = Field(default=60.0, gt=0)
    """How long `start` and readers go on trying to connect."""
    fetch_wait_ms: int = Field(default=1000, ge=1, le=10_000)
    """How long a broker may keep a fetch waiting for a first record. A process that follows small topics asks for more: a fetch that
    comes back empty costs as much as one with records."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    ssl_cafile: Path | None = None
    """The CA that signed the brokers' certificates; without it the system's."""

    @model_validator(mode="after")
    def _has_what_its_protocol_needs(self) -> BusSettings:
        if self.security_protocol.startswith("SASL") and not (self.sasl_username and self.sasl_password):
            raise ValueError(f"security_protocol {self.security_protocol} needs sasl_username and sasl_password")
        return self

    def physical(self, topic: str) -> str:
        """The name on the cluster of a topic of the catalogue."""
        return self.topic_prefix + topic

    def logical(self, topic: str) -> str:
        """The catalogue's name of a topic on the cluster."""
        return topic.removeprefix(self.topic_prefix)

    def group(self, name: str) -> str:
        """The consumer group's name on the cluster."""
        return self.topic_prefix + name

    def client_options(self) -> dict[str, Any]:
        """What producers, consumers and admins share."""
        options: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap,
            "client_id": self.client_id,
            # Also bounds the wait for the metadata of a topic that doesn't exist; the default is 40 s.
            "request_timeout_ms": 15_000,
            "retry_backoff_ms": 200,
            # A topic that was made a moment ago, or a leader that moved, is found within half a minute.
            "metadata_max_age_ms": 30_000,
            "security_protocol": self.security_protocol,
        }
        if self.security_protocol.endswith("SSL"):
            options["ssl_context"] = ssl.create_default_context(
                cafile=str(self.ssl_cafile) if self.ssl_cafile else None
            )
        if self.security_protocol.startswith("SASL") and self.sasl_password is not None:
            options["sasl_mechanism"] = self.sasl_mechanism
            options["sasl_plain_username"] = self.sasl_username
            options["sasl_plain_password"] = self.sasl_password.get_secret_value()
        return options

    def producer_options(self) -> dict[str, Any]:
        """An acknowledged record is on every in-sync replica, in order, once for each send."""
        return self.client_options() | {
            "acks": "all",
            "enable_idempotence": True,
            "compression_type": "zstd",
            # Compared with the size before compression, so no compressible record slips past a smaller limit.
            "max_request_size": MAX_RECORD_BYTES,
            "max_batch_size": MAX_BATCH_BYTES,
        }

    def reader_options(self) -> dict[str, Any]:
        """For readers without a group: they choose every offset themselves, so a lost one is an error, not a jump."""
        return self.client_options() | {
            "group_id": None,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",
            "max_partition_fetch_bytes": MAX_FETCH_BYTES,
            "fetch_max_wait_ms": self.fetch_wait_ms,
            # The fetching routine looks around that often when nothing happens; all that matters to it wakes it up.
            "consumer_timeout_ms": 1_000,
        }

    def consumer_options(self, group: str) -> dict[str, Any]:
        """For a lane: nothing is committed behind its back, and a new group begins at the beginning."""
        return self.reader_options() | {
            "group_id": self.group(group),
            "auto_offset_reset": "earliest",
            # Partition n of each topic goes to one member: topics keyed alike stay together.
            "partition_assignment_strategy": (RangePartitionAssignor,),
            # The lowest that brokers accept by default: the work of a killed process is taken over after 6 s.
            "session_timeout_ms": 6_000,
            "heartbeat_interval_ms": 1_500,
            # Time for handlers to finish what they have when partitions are handed over.
            "rebalance_timeout_ms": 30_000,
            # A check of the client's own, for loops that hang; ours may wait long for a slow handler, and says so in its health.
            "max_poll_interval_ms": 24 * 3600 * 1000,
        }
