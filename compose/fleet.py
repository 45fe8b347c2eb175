"""How the several workers and proxies of one local stack are called, and what each is told beside the stack's settings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from compose.settings import ENV_PREFIX, StackSettings


@dataclass(frozen=True, slots=True)
class Instance:
    """One process of a stack: which part it runs, under which name it is kept, and its own environment."""

    kind: str
    name: str
    env: dict[str, str] = field(default_factory=dict)


def instances(settings: StackSettings, kind: str) -> list[Instance]:
    """The processes of one part: `worker` alone, or `worker-1`, `worker-2` … where there are several.

    The name is a node's id in heartbeats, its log's, its ready file's and its state directory's, so that no two meet. Given ports are
    those of the first, the others' follow.
    """
    count = {"worker": settings.workers, "proxy": settings.proxies}.get(kind, 1)
    if count == 1:
        return [Instance(kind, kind)]
    return [Instance(kind, name := f"{kind}-{n}", _own(settings, kind, name, n - 1)) for n in range(1, count + 1)]


def _own(settings: StackSettings, kind: str, name: str, offset: int) -> dict[str, str]:
    own = {"part_name": name, f"{kind}_id": name}
    if kind == "proxy":
        ports = {which: getattr(settings, which) for which in ("proxy_port", "proxy_admin_port", "forward_port")}
        own |= {which: str(port + offset) for which, port in ports.items() if port}
    return {ENV_PREFIX + key.upper(): value for key, value in own.items()}


def in_order(names: Iterable[str], kinds: Iterable[str]) -> list[list[str]]:
    """Names of processes, together by kind, in the order of the kinds: those of one kind may go at once."""
    left = list(names)
    return [[name for name in left if name == kind or name.rpartition("-")[0] == kind] for kind in kinds]
