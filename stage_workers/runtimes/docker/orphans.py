"""Containers that no living incarnation of a worker owns: found by their labels, removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import docker.errors
import structlog

from stage_workers.runtimes.base import RuntimeFault
from stage_workers.runtimes.docker.engine import Engine
from stage_workers.runtimes.docker.options import INCARNATION_LABEL, OWNER_LABEL, RUNTIME_LABEL

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A container, and what it was made for: the name of its runtime begins with the session's id."""

    container_id: str
    runtime: str
    incarnation: str


async def list_orphans(
    engine: Engine, owner: str, *, is_alive: Callable[[Orphan], bool] = lambda _: False
) -> list[Orphan]:
    """A worker's containers for which `is_alive` is false, running or not. Raises RuntimeFault."""
    rows: list[dict[str, Any]] = await engine.call(
        "its containers can't be listed",
        lambda client: client.containers(all=True, filters={"label": f"{OWNER_LABEL}={owner}"}),
    )
    found = [
        Orphan(
            container_id=row["Id"],
            runtime=row["Labels"].get(RUNTIME_LABEL, ""),
            incarnation=row["Labels"].get(INCARNATION_LABEL, ""),
        )
        for row in rows
    ]
    return [orphan for orphan in found if not is_alive(orphan)]


async def remove(engine: Engine, container_id: str) -> None:
    """Kills and removes a container with its volumes; one that is gone already is fine. Raises RuntimeFault."""

    def kill(client: Any) -> None:
        try:
            client.remove_container(container_id, force=True, v=True)
        except docker.errors.NotFound:
            return
        except docker.errors.APIError as error:
            # Two removals at once: the other one does it.
            if error.status_code != 409:
                raise

    await engine.call("the container can't be removed", kill)


async def reap_containers(
    owner: str, *, engine: Engine | None = None, is_alive: Callable[[Orphan], bool] = lambda _: False
) -> int:
    """Removes a worker's containers for which `is_alive` is false; returns how many. Where there is no engine, none; never raises."""
    own = engine or Engine()
    try:
        if not own.is_socket_there:
            return 0
        found = 0
        for orphan in await list_orphans(own, owner, is_alive=is_alive):
            try:
                await remove(own, orphan.container_id)
            except RuntimeFault as fault:
                # One that the engine can't end must not keep the others.
                log.error("container.left", container=orphan.container_id[:12], why=str(fault))  # noqa: TRY400
                continue
            found += 1
            log.warning("container.reaped", container=orphan.container_id[:12], runtime=orphan.runtime)
    except RuntimeFault as fault:
        log.warning("containers.unseen", why=str(fault))
        return 0
    finally:
        if engine is None:
            await own.close()
    return found
