"""What a broker is told: its properties file, its ports and its identity. Pure, apart from asking the kernel for ports."""

from __future__ import annotations

import base64
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"
"""Brokers of our own serve this machine only: they ask nobody for a password."""

MAX_MESSAGE_BYTES = 8 * 1024 * 1024
"""The broker's limit for one (compressed) batch. Values above 256 KiB travel as blobs, so it is room, not a target."""


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The two ports of one node."""

    broker: int
    controller: int


def new_cluster_id() -> str:
    """A random id in Kafka's form: 22 characters of URL-safe base64, without a leading dash (it would read as an option)."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def is_free(port: int) -> bool:
    """Whether a server could listen on `port` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """`count` different ports that were free a moment ago; a start that loses the race chooses again."""
    held = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for one in held:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()


def server_properties(node_id: int, ports: dict[int, NodePorts], log_dir: Path) -> str:
    """The properties file of one combined broker and controller of a cluster with the nodes in `ports`.

    The quorum is the static one: its voters stand in this file only, so a cluster may come back on other ports.
    """
    mine, nodes = ports[node_id], len(ports)
    replicas = min(3, nodes)
    in_sync = max(1, replicas - 1)
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": node_id,
        "controller.quorum.voters": ",".join(f"{i}@{HOST}:{p.controller}" for i, p in sorted(ports.items())),
        "listeners": f"CLIENT://{HOST}:{mine.broker},CONTROLLER://{HOST}:{mine.controller}",
        "advertised.listeners": f"CLIENT://{HOST}:{mine.broker}",
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "CLIENT",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": log_dir,
        # A topic is declared or it doesn't exist: a typo must not become one.
        "auto.create.topics.enable": "false",
        "delete.topic.enable": "true",
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "unclean.leader.election.enable": "false",
        "message.max.bytes": MAX_MESSAGE_BYTES,
        "replica.fetch.max.bytes": MAX_MESSAGE_BYTES,
        "compression.type": "producer",
        "offsets.topic.replication.factor": replicas,
        # The default of 50 is for thousands of groups and costs half a second at the first start.
        "offsets.topic.num.partitions": 8,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": 8,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "share.coordinator.state.topic.num.partitions": 2,
        # One consumer per group is the rule here: waiting for more only delays it.
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
        # An idle controller writes a record that says nothing, and syncs it, twice a second by default.
        "metadata.max.idle.interval.ms": 5000,
        # Index files are preallocated: at the default of 10 MB each, a hundred partitions look like gigabytes.
        "log.index.size.max.bytes": 1024 * 1024,
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
        "log.cleaner.io.buffer.size": 256 * 1024,
        "num.network.threads": 2,
        "num.io.threads": 4,
        "num.recovery.threads.per.data.dir": 2,
        # A stopped node must come back quickly, and be missed quickly.
        "controlled.shutdown.enable": "true",
        "broker.session.timeout.ms": 6000,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())
