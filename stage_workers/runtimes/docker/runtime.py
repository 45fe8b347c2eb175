"""Runtime `docker`: one container; programs run in it by exec, files go through the engine, its network is what was opened for it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import docker.errors
import structlog

from schemas.task import RuntimeSpec
from stage_workers.runtimes.base import ExecResult, Listener, OnOutput, RuntimeFault, image_of, parse_options
from stage_workers.runtimes.docker import files, sweep
from stage_workers.runtimes.docker.doorway import listen_by_container
from stage_workers.runtimes.docker.engine import Engine, gone_is
from stage_workers.runtimes.docker.options import (
    INCARNATION_LABEL,
    KEEPER,
    OWNER_LABEL,
    RUNTIME_LABEL,
    DockerOptions,
    container_name,
    host_config,
)
from stage_workers.runtimes.docker.orphans import remove
from stage_workers.runtimes.docker.programs import ContainerPrograms
from stage_workers.runtimes.network import NetworkSpace
from stage_workers.runtimes.processes import is_in_container
from stage_workers.runtimes.sandbox import Sandbox

log = structlog.get_logger(__name__)

# Where programs of the worker's machine (its node) are found when the image has none of that name.
TOOLS_DIR = "/opt/polynya/bin"
_PULL_S = 1800.0
_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class DockerRuntime(Sandbox):
    """A session's container."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        *,
        owner: str,
        spec: RuntimeSpec,
        binds: Sequence[tuple[Path, str]] = (),
        grace_s: float = 2.0,
    ) -> None:
        """`owner` is `<worker>/<incarnation>`, as labels say it; `binds` are (place here, place inside), read-only.

        Raises:
            RuntimeFault: the task's `runtime` doesn't fit.
        """
        self._image = image_of(spec)
        self._engine = engine
        self._name = name
        self._owner = owner
        self._spec = spec
        self._options = parse_options(DockerOptions, spec)
        super().__init__(self._options)
        self._binds = tuple(binds)
        worker, _, incarnation = owner.rpartition("/")
        self._labels = {OWNER_LABEL: worker, INCARNATION_LABEL: incarnation, RUNTIME_LABEL: name}
        self._container = ""
        self._path = _DEFAULT_PATH
        self._user = (0, 0)
        self._programs = ContainerPrograms(engine, self._call, user=self._options.user, grace_s=grace_s)

    @property
    def container_id(self) -> str:
        """The engine's id of the container; empty before the start and after the end."""
        return self._container

    async def start(self) -> None:
        """Makes the container and its directories."""
        image = self._image
        await self._find(image)

        def create(client: Any) -> str:
            made = client.create_container(
                image,
                list(KEEPER),
                entrypoint=[],
                name=container_name(f"{self._name}-{uuid.uuid4().hex[:6]}", self._owner),
                user=self._options.user or None,
                labels=self._labels,
                # No address of the machine's resolver or name is of use in there.
                hostname="sandbox",
                working_dir="/",
                # Proxies that the engine's user has set up may hold a password, and a sandbox without a network has no use for them.
                use_config_proxy=self._spec.network == "egress",
                host_config=host_config(client, self._spec, self._options, self._binds),
            )
            return str(made["Id"])

        with gone_is(f"the image {image} isn't on this machine any more"):
            self._container = await self._engine.call(f"no container of {image} can be made", create)
        try:
            await self._call(f"the container of {image} can't be started", lambda client, it: client.start(it))
            await self._survey()
        except BaseException:  # also when cancelled: a container that didn't become a runtime is nobody's
            await self.stop()
            raise

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        path_dirs: Sequence[str] = (),
        stdin: bytes | None = None,
        on_output: OnOutput | None = None,
        keep_bytes: int = 65_536,
    ) -> ExecResult:
        """See `Runtime.exec`."""
        environment = {"HOME": self.home, "LANG": "C.UTF-8", "TERM": "dumb", "CI": "1", **(env or {})}
        environment["PATH"] = ":".join((*path_dirs, environment.get("PATH") or self._path, TOOLS_DIR))
        return await self._programs.run(
            argv,
            environment,
            self.place(cwd),
            timeout_s=timeout_s,
            stdin=stdin,
            on_output=on_output,
            keep_bytes=keep_bytes,
        )

    async def listen(self) -> Listener:
        """A socket on the container's own loopback."""
        details = await self._call("the container can't be looked at", lambda client, it: client.inspect_container(it))
        pid = details["State"]["Pid"]
        if not pid:
            raise RuntimeFault("the container isn't running any more: nothing can listen in it")
        try:
            if not is_in_container(pid, self._container):
                raise RuntimeFault("the container's first process isn't in sight")
            space = NetworkSpace.of(pid)
        except RuntimeFault:
            # An ordinary user who may use the engine: let the engine do it.
            return await listen_by_container(self._engine, self._image, self._container, self._labels)
        try:
            return await space.listen()
        finally:
            space.close()

    async def upload(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Writes a file and its directories, as the user that programs run as."""
        place = self.place(path)
        archive = files.pack(place, content, mode, self._user)
        await self._call(f"{place} can't be written", lambda client, it: client.put_archive(it, "/", archive))

    async def download(self, path: str, limit_bytes: int = 16 * 1024 * 1024) -> bytes:
        """Reads a file; a symbolic link is followed inside the container."""
        place = self.place(path)
        with gone_is(f"{place} can't be read: no such file in the container"):
            data: bytes = await self._call(
                f"{place} can't be read", lambda client, it: files.fetch(client, it, place, limit_bytes), is_file=True
            )
        return data

    async def stop(self) -> None:
        """Kills the whole container and removes it."""
        container, self._container = self._container, ""
        if not container:
            return
        try:
            await remove(self._engine, container)
        except RuntimeFault as fault:
            # Its labels let the reaper find it.
            log.error("container.left", container=container[:12], runtime=self._name, why=str(fault))  # noqa: TRY400

    # -- its ways to the engine ------------------------------------------------------------------------------------

    async def _call(self, what: str, function: Any, *, is_file: bool = False, deadline_s: float = 60.0) -> Any:
        container = self._container
        if not container:
            raise RuntimeFault(f"{what}: the container isn't there (not started yet, or stopped)")
        call = self._engine.call(what, lambda client: function(client, container), deadline_s=deadline_s)
        if is_file:
            return await call
        with gone_is(f"{what}: the container is gone; was it removed by hand?"):
            return await call

    async def _find(self, image: str) -> None:
        """Sees that the image is there, and reads its PATH."""

        def inspect(client: Any) -> Any:
            return client.inspect_image(image)

        missing = (
            f"the image {image} isn't on this machine; run `docker pull {image}` (or build it), "
            "or let INIT do it with runtime.options.pull: missing"
        )
        try:
            found = await self._engine.call(f"the image {image} can't be looked at", inspect)
        except docker.errors.NotFound:
            if self._options.pull == "never":
                raise RuntimeFault(missing) from None
            with gone_is(f"the image {image} can't be pulled: its registry doesn't know it"):
                await self._engine.call(
                    f"the image {image} can't be pulled", lambda client: _pull(client, image), deadline_s=_PULL_S
                )
                found = await self._engine.call(f"the image {image} can't be looked at", inspect)
        variables = dict(item.partition("=")[::2] for item in found["Config"].get("Env") or [])
        self._path = variables.get("PATH") or _DEFAULT_PATH

    async def _survey(self) -> None:
        result = await self.exec(["/bin/sh", "-c", sweep.SURVEY, "sh", self.workdir, self.home], timeout_s=60, cwd="/")
        if not result.succeeded:
            raise RuntimeFault(f"the image {self._image} has no /bin/sh that works: {result.tail()}")
        said = [line.partition("=")[::2] for line in result.stdout.decode("utf-8", "replace").splitlines()]
        found = dict(said)
        self._user = int(found.get("uid") or 0), int(found.get("gid") or 0)
        for name, place in said:
            if name == "missing":
                archive = files.pack_directory(place, self._user)
                await self._call(
                    f"{place} can't be made", lambda client, it, data=archive: client.put_archive(it, "/", data)
                )


def _pull(client: Any, image: str) -> None:
    """Pulls one image. Without a tag the engine would pull all of them. Blocks."""
    last = image.rpartition("/")[2]
    client.pull(image if ":" in last or "@" in last else f"{image}:latest")
