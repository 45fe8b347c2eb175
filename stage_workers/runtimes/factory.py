"""The runtimes of one worker's incarnation: made by kind, marked as its own."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel

from schemas.task import RuntimeSpec
from stage_workers.runtimes.apptainer import ApptainerOptions, ApptainerRuntime
from stage_workers.runtimes.base import Limits, Runtime, image_of, parse_options
from stage_workers.runtimes.docker import DockerRuntime, Engine
from stage_workers.runtimes.docker.options import DockerOptions
from stage_workers.runtimes.docker.runtime import TOOLS_DIR
from stage_workers.runtimes.helper import NamespaceHelper
from stage_workers.runtimes.instances import PROGRAM
from stage_workers.runtimes.local import LocalRuntime

_OPTIONS: Mapping[str, type[BaseModel]] = {"docker": DockerOptions, "apptainer": ApptainerOptions}


def check(spec: RuntimeSpec) -> None:
    """What can be told of a task's `runtime` without the machine that it is for.

    Raises:
        RuntimeFault: no image, or an option that its kind doesn't have; the text starts with the field's path.
    """
    if (options := _OPTIONS.get(spec.kind)) is not None:
        image_of(spec)
        parse_options(options, spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtimes:
    """Makes the runtimes of an incarnation (a RuntimeFactory).

    `root` is where their files live, `owner` the mark that they all bear (`<worker>/<incarnation>`), `grace_s` the time from
    SIGTERM to SIGKILL. `cache_dir` is where harnesses are installed: sandboxes see it, read-only, at the same path. What a local
    program calls must be a listener of its runtime, unless its task says `network: egress`: `isolates_local` false leaves it
    the machine's network all the same.
    """

    root: Path
    owner: str
    grace_s: float = 2.0
    cache_dir: Path | None = None
    isolates_local: bool = True
    docker: Engine = field(default_factory=Engine)
    helper: NamespaceHelper = field(default_factory=NamespaceHelper)

    @property
    def kinds(self) -> list[str]:
        """The kinds that this machine has, as far as can be seen without asking an engine."""
        found = {"local": True, "docker": self.docker.is_socket_there, "apptainer": shutil.which(PROGRAM) is not None}
        return [kind for kind, is_there in found.items() if is_there]

    def __call__(self, spec: RuntimeSpec, name: str) -> Runtime:
        """A runtime as a task asks for it, not yet started. Raises RuntimeFault where it doesn't fit its kind."""
        if spec.kind == "docker":
            return DockerRuntime(
                self.docker, name, owner=self.owner, spec=spec, binds=self._binds(), grace_s=self.grace_s
            )
        if spec.kind == "apptainer":
            return ApptainerRuntime(
                self.root, name, owner=self.owner, spec=spec, binds=self._binds(), grace_s=self.grace_s
            )
        return LocalRuntime(
            self.root,
            name,
            owner=self.owner,
            limits=Limits.of(spec),
            grace_s=self.grace_s,
            isolate=self.isolates_local and spec.network == "model_only",
            helper=self.helper,
            compile_cache=self._compile_cache(),
        )

    async def close(self) -> None:
        """Closes connections to engines, and ends the helper; runtimes that still stand can't be used after that."""
        await self.docker.close()
        self.helper.close()

    def _compile_cache(self) -> Path | None:
        """A directory of this user's alone: what is in it is run."""
        if self.cache_dir is None:
            return None
        place = self.cache_dir.resolve() / "compiled"
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        return place

    def _binds(self) -> list[tuple[Path, str]]:
        """What of this machine a sandbox sees: the installed harnesses, and the node that runs some of them."""
        found: list[tuple[Path, str]] = []
        for part in ("harnesses", "node") if self.cache_dir else ():
            place = (self.cache_dir or Path()).resolve() / part
            place.mkdir(parents=True, exist_ok=True)
            found.append((place, str(place)))
        if node := shutil.which("node"):
            found.append((Path(node).resolve(), f"{TOOLS_DIR}/node"))
        return found
