"""From a task's RuntimeSpec to how its container is made. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from schemas.task import RuntimeSpec

OWNER_LABEL = "polynya.owner"
INCARNATION_LABEL = "polynya.incarnation"
RUNTIME_LABEL = "polynya.runtime"
# A container of ours may not fill the machine's process table, whatever its task says.
_PIDS = 4096
# Waits for ever, and takes in the children that others left: the first process of a container must.
KEEPER = ("/bin/sh", "-c", "trap 'exit 0' TERM; while :; do sleep 2147483647 & wait $!; done")


class DockerOptions(BaseModel):
    """What `runtime.options` may say for `kind: docker`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workdir: str = Field(default="/work", pattern="^/", description="where programs run; made where the image lacks it")
    home: str = Field(
        default="/home/polynya", pattern="^/", description="HOME of programs; made where the image lacks it"
    )
    user: str = Field(default="", description="user or uid[:gid] of programs; the image's own by default")
    cap_add: tuple[str, ...] = Field(default=(), description="capabilities to keep; none by default")
    pull: Literal["never", "missing"] = Field(
        default="never", description="whether INIT pulls an image that is missing"
    )
    runtime: str = Field(default="", description="an OCI runtime that the engine knows (`runsc`, `kata`, …)")
    gpus: int = Field(default=0, ge=-1, description="GPUs given to the container, -1: all")
    shm_mb: int = Field(default=64, gt=0, description="size of /dev/shm")


def container_name(name: str, owner: str) -> str:
    """A name that the engine takes, for people who look at `docker ps`."""
    return "polynya-" + re.sub(r"[^a-zA-Z0-9_.-]", "-", f"{owner.rpartition('/')[2][:8]}-{name}")


def host_config(client: Any, spec: RuntimeSpec, options: DockerOptions, binds: Sequence[tuple[Path, str]]) -> Any:
    """The engine's HostConfig: limits, no privileges, no network unless the task asks for one, binds read-only."""
    memory = None if spec.memory_mb is None else spec.memory_mb * 1024 * 1024
    extra: dict[str, Any] = {}
    if options.runtime:
        extra["runtime"] = options.runtime
    if options.gpus:
        extra["device_requests"] = [{"Driver": "", "Count": options.gpus, "Capabilities": [["gpu"]]}]
    return client.create_host_config(
        network_mode="bridge" if spec.network == "egress" else "none",
        mem_limit=memory,
        # Memory and swap together: no swap beside it.
        memswap_limit=memory,
        nano_cpus=None if spec.cpus is None else int(spec.cpus * 1e9),
        pids_limit=spec.pids or _PIDS,
        shm_size=options.shm_mb * 1024 * 1024,
        cap_drop=["ALL"],
        cap_add=list(options.cap_add),
        security_opt=["no-new-privileges"],
        ulimits=[{"Name": "core", "Soft": 0, "Hard": 0}],
        binds={str(source): {"bind": target, "mode": "ro"} for source, target in binds},
        # No log of the keeper's output, which is none.
        log_config={"Type": "none", "Config": {}},
        **extra,
    )
