"""A Kafka of our own: started, found again, hurt and stopped, without Docker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from compose.kafka import KafkaCluster, KafkaUnavailable
from compose.kafka.config import NodePorts, free_ports, is_free, new_cluster_id, server_properties
from compose.kafka.probe import ProbeFailedError, view

ROOT = Path(__file__).parents[3]
OWNER = """
import sys, time
from pathlib import Path
from compose.kafka import KafkaCluster
cluster = KafkaCluster(Path(sys.argv[1])).start(detach=sys.argv[2] == "detach")
print(cluster.pids[1], cluster.cluster_id, cluster.bootstrap, flush=True)
if sys.argv[2] != "detach":
    time.sleep(600)
"""


def properties(nodes, node=1):
    """The properties file of one node as a dictionary."""
    ports = {n: NodePorts(1000 + n, 2000 + n) for n in range(1, nodes + 1)}
    return dict(line.split("=", 1) for line in server_properties(node, ports, Path("/data")).splitlines())


def owner(data_dir, mode):
    """Another process that starts a cluster; returns it, and what it said."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(data_dir), mode], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    pid, cluster_id, bootstrap = process.stdout.readline().split()
    return process, int(pid), cluster_id, bootstrap


def wait_dead(pid):
    """Wait until a process that isn't our child is gone."""
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and "(java) Z" not in Path(f"/proc/{pid}/stat").read_text():
        assert time.monotonic() < deadline, f"process {pid} lives on"
        time.sleep(0.05)


def test_nothing_is_made_by_accident():
    """A typo in a topic's name doesn't become a topic."""
    assert properties(1)["auto.create.topics.enable"] == "false"


@pytest.mark.parametrize(("nodes", "replicas", "in_sync"), [(1, "1", "1"), (3, "3", "2")])
def test_replication_follows_the_nodes(nodes, replicas, in_sync):
    """Internal topics are replicated as far as the nodes go, and survive the loss of one of three."""
    found = properties(nodes)
    assert found["offsets.topic.replication.factor"] == replicas
    assert found["transaction.state.log.replication.factor"] == replicas
    assert (found["default.replication.factor"], found["min.insync.replicas"]) == (replicas, in_sync)
    assert found["controller.quorum.voters"].count("@") == nodes


def test_brokers_serve_this_machine_only():
    """They ask for no password, so they listen on loopback."""
    assert properties(3, node=2)["listeners"] == "CLIENT://127.0.0.1:1002,CONTROLLER://127.0.0.1:2002"


def test_ids_are_kafkas():
    """22 characters of URL-safe base64, never an option's look."""
    ids = {new_cluster_id() for _ in range(200)}
    assert len(ids) == 200
    assert all(len(one) == 22 and not one.startswith("-") for one in ids)


def test_free_ports_are_free_and_different():
    """As many as asked for."""
    ports = free_ports(6)
    assert len(set(ports)) == 6
    assert all(is_free(port) for port in ports)


@pytest.mark.parametrize("nodes", [0, 2, 4])
def test_one_node_or_three(tmp_path, nodes):
    """Two can't outvote each other, and more is another tool's work."""
    with pytest.raises(ValueError, match="1 node or 3"):
        KafkaCluster(tmp_path, nodes=nodes)
    with pytest.raises(ValueError, match="port"):
        KafkaCluster(tmp_path, nodes=3, ports=[1, 2])


def test_there_is_nothing_to_attach_to(tmp_path):
    """Attaching to a directory without a cluster says that nothing was started there."""
    with pytest.raises(KafkaUnavailable, match="nothing was started there"):
        KafkaCluster.attach(tmp_path)
    with pytest.raises(KafkaUnavailable, match="never been started"):
        _ = KafkaCluster(tmp_path).bootstrap


def test_a_given_port_in_use_is_named(tmp_path, monkeypatch):
    """A port that the caller chose is taken as it is, or refused with its number."""
    import socket

    monkeypatch.setattr("compose.kafka.cluster._require_free.__kwdefaults__", {"patience_s": 0.0})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(KafkaUnavailable, match=f"port {port} .*in use"):
            KafkaCluster(tmp_path, ports=[port]).start()


def test_nobody_answers_at_a_closed_port():
    """The probe tells silence from an answer."""
    with pytest.raises(ProbeFailedError, match=r"127\.0\.0\.1"):
        view("127.0.0.1", free_ports(1)[0])


@pytest.mark.broker
@pytest.mark.timeout(400)
def test_a_cluster_from_the_first_start_to_the_last_stop(tmp_path, kafka):
    """It dies with its owner, comes back with its id, data and address, stays when detached, and is found and stopped again."""
    data = tmp_path / "kafka"
    process, pid, cluster_id, bootstrap = owner(data, "child")
    port = int(bootstrap.rpartition(":")[2])
    assert view("127.0.0.1", port).brokers == (1,)
    with pytest.raises(KafkaUnavailable, match="attach"):
        KafkaCluster(data).start()
    with pytest.raises(KafkaUnavailable, match="1 node"):
        KafkaCluster(data, nodes=3)
    process.kill()  # SIGKILL: it can clean up nothing itself
    process.wait()
    process.stdout.close()
    wait_dead(pid)
    assert KafkaCluster.attach(data).pids == {}

    (data / "node-1" / "data" / "kept").write_text("")
    process, again, same_id, same_bootstrap = owner(data, "detach")
    assert process.wait(timeout=60) == 0
    process.stdout.close()
    assert (same_id, same_bootstrap) == (cluster_id, bootstrap)
    assert (data / "node-1" / "data" / "kept").exists()
    assert again != pid

    found = KafkaCluster.attach(data)
    assert (found.pids, found.bootstrap, found.cluster_id) == ({1: again}, bootstrap, cluster_id)
    os.kill(again, 0)
    found.suspend()
    with pytest.raises(ProbeFailedError):
        view("127.0.0.1", port, timeout_s=0.3)
    found.resume()
    found.await_ready()
    found.suspend()  # a stop reaches even a suspended broker
    found.stop()
    assert found.pids == {}
    wait_dead(again)


@pytest.mark.broker
def test_a_broker_that_cannot_start_shows_its_log(tmp_path, kafka, monkeypatch):
    """The end of the broker's own log is in the error, and nothing is left running."""
    monkeypatch.setattr("compose.kafka.cluster.server_properties", lambda *_: "process.roles=neither\n")
    monkeypatch.setattr(KafkaCluster, "_format", lambda *_: None)
    cluster = KafkaCluster(tmp_path / "kafka")
    with pytest.raises(KafkaUnavailable, match=r"(?s)ended while starting.*process\.roles"):
        cluster.start()
    assert cluster.pids == {}


@pytest.mark.broker
def test_an_unknown_node_is_refused(tmp_path):
    """Hurting a node that doesn't exist is a mistake, not a no-op."""
    with pytest.raises(ValueError, match="no node 2"):
        KafkaCluster(tmp_path).kill(2, signal.SIGTERM)
