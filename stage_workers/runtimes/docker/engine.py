"""One Docker engine: its SDK called from threads under deadlines, its errors as faults that say what to do."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import docker
import docker.errors
import requests

from stage_workers.runtimes.base import RuntimeFault
from stage_workers.runtimes.docker.stream import Streams

T = TypeVar("T")

DEFAULT_HOST = "unix:///var/run/docker.sock"
# Making a container takes a third of a second; an engine that pulls or is overwhelmed, far longer.
_CALL_S = 60.0
_THREADS = 16


class Engine:
    """A connection to a Docker engine, made at the first call. Not to be used from several event loops."""

    def __init__(self, host: str = "") -> None:
        """`host` is what DOCKER_HOST would say (`unix://…` or `tcp://…`); absent: that variable, else the usual socket."""
        self.host = host or os.environ.get("DOCKER_HOST") or DEFAULT_HOST
        self._client: Any = None
        self._threads: ThreadPoolExecutor | None = None
        self._connecting = asyncio.Lock()

    @property
    def is_socket_there(self) -> bool:
        """False where the engine's socket doesn't exist, so that asking it is no use."""
        parts = urlsplit(self.host)
        return parts.scheme != "unix" or Path(parts.path).exists()

    async def call(self, what: str, function: Callable[[Any], T], *, deadline_s: float = _CALL_S) -> T:
        """Calls `function` with the SDK's low-level client, in a thread.

        Raises:
            RuntimeFault: the engine can't be reached, refuses, or takes longer than `deadline_s`; `what` begins its text.
        """
        try:
            async with asyncio.timeout(deadline_s):
                client = await self._connected()
                return await self._in_thread(lambda: function(client))
        except TimeoutError:
            raise RuntimeFault(
                f"{what}: the Docker engine at {self.host} took longer than {deadline_s:.0f} s"
            ) from None
        except docker.errors.NotFound:
            raise
        except docker.errors.APIError as error:
            raise RuntimeFault(f"{what}: {error.explanation or error}") from error
        except (docker.errors.DockerException, requests.RequestException, OSError) as error:
            raise RuntimeFault(f"{what}: {self.unreachable(error)}") from error

    def unreachable(self, error: Exception) -> str:
        """What to say, and what to type next, when the engine doesn't answer."""
        return (
            f"no Docker engine answers at {self.host} ({error}); start one (`systemctl start docker`), "
            "or name another with DOCKER_HOST=unix:///path/to/docker.sock"
        )

    async def streams(self) -> Streams:
        """A connection of its own for one exec's streams. Raises RuntimeFault."""
        try:
            return await Streams.connect(self.host)
        except (OSError, TimeoutError) as error:
            raise RuntimeFault(self.unreachable(error)) from error

    async def close(self) -> None:
        """Closes its connections; a call after that opens them again."""
        client, threads = self._client, self._threads
        self._client = self._threads = None
        if client is not None:
            client.close()
        if threads is not None:
            threads.shutdown(wait=False, cancel_futures=True)

    async def _connected(self) -> Any:
        async with self._connecting:
            if self._client is None:
                if urlsplit(self.host).scheme not in {"unix", "tcp"}:
                    raise RuntimeFault(
                        f"DOCKER_HOST is {self.host}, but sandboxes need an engine on this machine: give it as unix:///…"
                    )
                # The SDK leaves a socket open where nothing answers: look first.
                await (await self.streams()).close()
                self._client = await self._in_thread(
                    lambda: docker.APIClient(base_url=self.host, version="auto", timeout=_CALL_S)
                )
        return self._client

    async def _in_thread(self, function: Callable[[], T]) -> T:
        if self._threads is None:
            # Its own threads: an engine that hangs must not take those that everything else shares.
            self._threads = ThreadPoolExecutor(_THREADS, "docker")
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


@contextlib.contextmanager
def gone_is(text: str) -> Iterator[None]:
    """Turns the engine's "not found" into a fault with this text."""
    try:
        yield
    except docker.errors.NotFound as error:
        raise RuntimeFault(text) from error
