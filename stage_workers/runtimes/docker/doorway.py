"""A listening socket in a container's network, for a worker that may not enter it: another container makes it and sends it out.

That container shares the network of the sandbox and nothing else with it. It sees this machine's files, read-only, to run the worker's own
interpreter, lives for a moment, and bears the worker's labels. Whoever may use the engine may do that.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stage_workers.runtimes import namespace_helper
from stage_workers.runtimes.base import Listener, RuntimeFault
from stage_workers.runtimes.docker.engine import Engine, gone_is
from stage_workers.runtimes.docker.orphans import remove
from stage_workers.runtimes.network import listener_of

_SENT_S = 30.0


async def listen_by_container(engine: Engine, image: str, container: str, labels: Mapping[str, str]) -> Listener:
    """Opens a socket on the loopback of `container`. Raises RuntimeFault."""
    with tempfile.TemporaryDirectory(prefix="polynya-door-") as place, socket.socket(socket.AF_UNIX) as door:
        path = f"{place}/door"
        door.bind(path)
        door.listen(1)
        door.setblocking(False)
        # The engine may run containers as another user than its own root.
        Path(place).chmod(0o711)
        Path(path).chmod(0o666)
        with gone_is("the container is gone: nothing can listen in it"):
            helper = await engine.call(
                "no helper can be made for the sandbox's network",
                lambda client: _create(client, image, container, path, labels),
            )
        try:
            await engine.call("the sandbox's network can't be entered", lambda client: client.start(helper))
            try:
                async with asyncio.timeout(_SENT_S):
                    channel, _ = await asyncio.get_running_loop().sock_accept(door)
                    with channel:
                        channel.setblocking(False)
                        descriptor = await _received(channel)
            except TimeoutError:
                said = await engine.call("the helper can't be asked", lambda client: client.logs(helper, tail=3))
                raise RuntimeFault(
                    "the sandbox's network can't be entered: run the worker as root on the engine's own machine, or use a rootless "
                    f"engine (the helper said: {said.decode('utf-8', 'replace').strip() or 'nothing'})"
                ) from None
        finally:
            await asyncio.shield(asyncio.ensure_future(remove(engine, helper)))
    return listener_of(socket.socket(fileno=descriptor))


async def _received(channel: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(channel.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(channel.fileno())
    _, found, _, _ = socket.recv_fds(channel, 1, 1)
    if not found:
        raise RuntimeFault("the helper in the sandbox's network sent no socket")
    return found[0]


def _create(client: Any, image: str, container: str, path: str, labels: Mapping[str, str]) -> str:
    # Links are resolved here: inside, the interpreter must be found by the file that it is.
    helper = Path(namespace_helper.__file__).resolve()
    interpreter = os.path.realpath(sys.executable)  # a path, nothing is read
    made = client.create_container(
        image,
        ["chroot", "/host", interpreter, "-I", "-S", str(helper), "send", path],
        entrypoint=[],
        user="0",
        labels=dict(labels),
        host_config=client.create_host_config(
            network_mode=f"container:{container}",
            binds={"/": {"bind": "/host", "mode": "ro"}},
            cap_drop=["ALL"],
            cap_add=["SYS_CHROOT", "DAC_READ_SEARCH", "DAC_OVERRIDE"],
            security_opt=["no-new-privileges"],
        ),
    )
    return str(made["Id"])
