"""A Kafka of one's own on this machine: formatted, started, awaited, hurt (for tests) and stopped, without Docker."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from compose.kafka import probe
from compose.kafka.config import HOST, NodePorts, free_ports, is_free, new_cluster_id, server_properties
from compose.kafka.errors import KafkaUnavailable
from compose.kafka.jars import find_java, resolve_jars
from compose.kafka.process import BrokerProcess

_PORT_ATTEMPTS = 4
"""Between choosing a free port and listening on it lie two seconds in which another process may take it."""


@dataclass(frozen=True, slots=True)
class _Identity:
    """What makes the data directory this cluster; kept in `cluster.json`."""

    cluster_id: str
    ports: dict[int, NodePorts]

    def save(self, path: Path) -> None:
        ports = {str(node): {"broker": p.broker, "controller": p.controller} for node, p in self.ports.items()}
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps({"cluster_id": self.cluster_id, "ports": ports}, indent=2) + "\n")
        partial.replace(path)

    @classmethod
    def load(cls, path: Path) -> _Identity | None:
        if not path.exists():
            return None
        try:
            saved = json.loads(path.read_text())
            return cls(saved["cluster_id"], {int(node): NodePorts(**p) for node, p in saved["ports"].items()})
        except (ValueError, KeyError, TypeError) as error:
            raise KafkaUnavailable(
                f"{path} isn't readable ({error}). Remove {path.parent} to begin with no data."
            ) from error


class KafkaCluster:
    """A KRaft cluster of one node or three; every node is broker and controller. Calls block; use a thread in async code.

    The data lives under `data_dir` and survives `stop` and `start`: same cluster id, same records, the same ports when
    they're still free. As a child (`start()`, the default) the brokers end with this process, even after `kill -9`;
    `start(detach=True)` leaves them running, and `KafkaCluster.attach(data_dir)` finds them again.
    """

    def __init__(
        self,
        data_dir: Path,
        nodes: int = 1,
        ports: Sequence[int] | None = None,
        *,
        heap_mb: int = 512,
        cache_dir: Path | None = None,
        start_timeout_s: float = 120.0,
    ) -> None:
        """`ports` are the brokers' ports, one per node, taken as they are; without them free ones are chosen."""
        if nodes not in (1, 3):
            raise ValueError(f"a cluster has 1 node or 3, not {nodes}: two can't outvote each other")
        if ports is not None and len(ports) != nodes:
            raise ValueError(f"{nodes} node(s) need {nodes} port(s), got {list(ports)}")
        self.data_dir = Path(data_dir).absolute()
        self._ids = range(1, nodes + 1)
        self._given_ports = list(ports) if ports is not None else None
        self._heap_mb = heap_mb
        self._cache_dir = cache_dir
        self._start_timeout_s = start_timeout_s
        self._processes = {node: BrokerProcess(self._node_dir(node)) for node in self._ids}
        self._identity = _Identity.load(self._identity_file)
        self._java: str | None = None
        self._jars: Path | None = None
        self._is_known = False
        """Whether clients may know the ports already: then a start keeps them or fails."""
        if self._identity is not None and set(self._identity.ports) != set(self._ids):
            raise KafkaUnavailable(
                f"{self.data_dir} holds a cluster of {len(self._identity.ports)} node(s), not {nodes}. "
                "Choose another directory, or the old number."
            )

    @classmethod
    def attach(cls, data_dir: Path) -> KafkaCluster:
        """The cluster that an earlier process left in `data_dir`, running or not; raises `KafkaUnavailable` without one."""
        identity = _Identity.load(Path(data_dir) / "cluster.json")
        if identity is None:
            raise KafkaUnavailable(f"There is no Kafka in {data_dir} (no cluster.json): nothing was started there.")
        cluster = cls(data_dir, nodes=len(identity.ports))
        cluster._is_known = bool(cluster.pids)
        return cluster

    @property
    def cluster_id(self) -> str:
        """Kafka's id of this cluster; the same after every restart."""
        return self._known.cluster_id

    @property
    def bootstrap(self) -> str:
        """The brokers' addresses, as clients take them."""
        return ",".join(f"{HOST}:{ports.broker}" for _, ports in sorted(self._known.ports.items()))

    @property
    def pids(self) -> dict[int, int]:
        """The live nodes and their pids."""
        return {node: pid for node, process in self._processes.items() if (pid := process.pid) is not None}

    def start(self, *, detach: bool = False) -> Self:
        """Start every node and wait until the cluster answers; raises `KafkaUnavailable` and leaves nothing running."""
        if self.pids:
            raise KafkaUnavailable(
                f"A Kafka runs in {self.data_dir} already (pids {sorted(self.pids.values())}). Stop it first, or attach to it."
            )
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._identity = _Identity(
                self._identity.cluster_id if self._identity else new_cluster_id(), self._choose_ports(retry=attempt > 1)
            )
            self.data_dir.mkdir(parents=True, exist_ok=True)
            self._identity.save(self._identity_file)
            for node in self._ids:
                self._launch(node, detach=detach)
            try:
                self.await_ready()
            except KafkaUnavailable:
                lost_the_race = any(
                    "Address already in use" in p.end_of_log(lines=60) for p in self._processes.values()
                )
                self.stop(timeout_s=1)
                if not lost_the_race or attempt == _PORT_ATTEMPTS:
                    raise
            except BaseException:  # also Ctrl-C: nothing may be left running
                self.stop(timeout_s=1)
                raise
            else:
                self._is_known = True
                return self
        raise AssertionError("unreachable: the last attempt returns or raises")

    def await_ready(self, *, timeout_s: float | None = None) -> None:
        """Wait until every live node sees every live node, a controller and a group coordinator; raises `KafkaUnavailable`."""
        limit = self._start_timeout_s if timeout_s is None else timeout_s
        deadline = time.monotonic() + limit
        expected = tuple(sorted(self.pids))
        reason = "no node runs"
        while expected:
            gone = [node for node in expected if self._processes[node].pid is None]
            if gone:
                process = self._processes[gone[0]]
                raise KafkaUnavailable(
                    f"Kafka's node {gone[0]} ended while starting. The end of {process.log}:\n{process.end_of_log()}"
                )
            try:
                for node in expected:
                    seen = probe.view(HOST, self._known.ports[node].broker)
                    if seen.brokers != expected or seen.controller_id < 0:
                        raise probe.ProbeFailedError(f"node {node} sees the brokers {seen.brokers}")
                probe.coordinator(HOST, self._known.ports[expected[0]].broker)
            except probe.ProbeFailedError as failed:
                reason = str(failed)
            else:
                return
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        raise KafkaUnavailable(f"Kafka in {self.data_dir} wasn't up after {limit:.0f} s: {reason}. See {self._logs}.")

    def stop(self, *, timeout_s: float = 20.0) -> None:
        """Stop every node in an orderly way, the hard way after `timeout_s`; fine when nothing runs."""
        for process in self._processes.values():
            process.send(signal.SIGCONT)  # a suspended process can't hear
            process.send(signal.SIGTERM)
        deadline = time.monotonic() + timeout_s
        for process in self._processes.values():
            if not process.wait_gone(timeout_s=max(0.0, deadline - time.monotonic())):
                process.send(signal.SIGKILL)
                process.wait_gone(timeout_s=10)

    def kill(self, node: int = 1, number: signal.Signals = signal.SIGKILL) -> None:
        """Send one node a signal; after SIGKILL it is gone when this returns."""
        self._process(node).send(number)
        if number == signal.SIGKILL:
            self._process(node).wait_gone(timeout_s=10)

    def start_node(self, node: int = 1, *, detach: bool = False) -> None:
        """Start one node that isn't running, on the ports it had, and wait until the cluster is whole."""
        if self._process(node).pid is None:
            self._launch(node, detach=detach)
        self.await_ready()

    def stop_node(self, node: int = 1, *, timeout_s: float = 20.0) -> None:
        """Stop one node in an orderly way, the hard way after `timeout_s`."""
        process = self._process(node)
        process.send(signal.SIGCONT)
        process.send(signal.SIGTERM)
        if not process.wait_gone(timeout_s=timeout_s):
            self.kill(node)

    def restart_node(self, node: int = 1, *, detach: bool = False) -> None:
        """Stop and start one node."""
        self.stop_node(node)
        self.start_node(node, detach=detach)

    def suspend(self, node: int | None = None) -> None:
        """Freeze one node or all: connections stay open and nothing answers, as in a hung machine."""
        for one in self._ids if node is None else (node,):
            self._process(one).send(signal.SIGSTOP)

    def resume(self, node: int | None = None) -> None:
        """Let suspended nodes go on."""
        for one in self._ids if node is None else (node,):
            self._process(one).send(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- inside ----------------------------------------------------------------------------------------------------

    @property
    def _identity_file(self) -> Path:
        return self.data_dir / "cluster.json"

    @property
    def _known(self) -> _Identity:
        if self._identity is None:
            raise KafkaUnavailable(f"The Kafka in {self.data_dir} has never been started: it has no address yet.")
        return self._identity

    @property
    def _logs(self) -> str:
        return ", ".join(str(process.log) for process in self._processes.values())

    def _node_dir(self, node: int) -> Path:
        return self.data_dir / f"node-{node}"

    def _process(self, node: int) -> BrokerProcess:
        if node not in self._processes:
            raise ValueError(f"there is no node {node}; the nodes are {list(self._ids)}")
        return self._processes[node]

    def _choose_ports(self, *, retry: bool) -> dict[int, NodePorts]:
        """Given ports, else the last ones, else free ones. Ports that clients may know are kept or refused, never changed."""
        old = self._identity.ports if self._identity else None
        if self._is_known and old is not None:
            _require_free([p for both in old.values() for p in (both.broker, both.controller)])
            return old
        if self._given_ports is not None:
            _require_free(self._given_ports)
            controllers = free_ports(len(self._ids))
            return {n: NodePorts(b, c) for n, b, c in zip(self._ids, self._given_ports, controllers, strict=True)}
        if old is not None and not retry and all(is_free(p.broker) and is_free(p.controller) for p in old.values()):
            return old
        chosen = free_ports(2 * len(self._ids))
        return {node: NodePorts(*chosen[2 * i : 2 * i + 2]) for i, node in enumerate(self._ids)}

    def _launch(self, node: int, *, detach: bool) -> None:
        self._java = self._java or find_java()
        self._jars = self._jars or resolve_jars(self._cache_dir)
        node_dir = self._node_dir(node)
        node_dir.mkdir(parents=True, exist_ok=True)
        log_dir = node_dir / "data"
        (node_dir / "server.properties").write_text(server_properties(node, self._known.ports, log_dir))
        if not (log_dir / "meta.properties").exists():
            self._format(node_dir)
        self._processes[node].spawn(self._java, self._jars, heap_mb=self._heap_mb, detach=detach)

    def _format(self, node_dir: Path) -> None:
        command = [str(self._java), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{self._jars}/*"]
        command += ["kafka.tools.StorageTool", "format", "--ignore-formatted"]
        command += ["--cluster-id", self.cluster_id, "--config", str(node_dir / "server.properties")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=node_dir)
        if done.returncode != 0:
            said = (done.stdout + done.stderr)[-2000:]
            raise KafkaUnavailable(
                f"Kafka's storage in {node_dir} couldn't be formatted (exit code {done.returncode}):\n{said}"
            )


def _require_free(ports: Sequence[int], *, patience_s: float = 5.0) -> None:
    """Raise `KafkaUnavailable` for a port in use; the last owner may take a moment to let go."""
    deadline = time.monotonic() + patience_s
    while taken := [port for port in ports if not is_free(port)]:
        if time.monotonic() > deadline:
            raise KafkaUnavailable(
                f"Kafka's port {taken[0]} on {HOST} is in use. See by what (`ss -ltnp sport = :{taken[0]}`), or choose another."
            )
        time.sleep(0.1)
