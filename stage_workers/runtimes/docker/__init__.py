"""Runtime `docker`: a container per session, on a Docker engine of this machine, with no network but its model."""

from __future__ import annotations

from stage_workers.runtimes.docker.engine import Engine
from stage_workers.runtimes.docker.orphans import Orphan, list_orphans, reap_containers, remove
from stage_workers.runtimes.docker.runtime import DockerRuntime

__all__ = ["DockerRuntime", "Engine", "Orphan", "list_orphans", "reap_containers", "remove"]
