"""A listening socket in a container's network, for a worker that may not enter it: another container makes it and sends it out.

That container shares the network of the sandbox and its image, whose programs are not to be trusted: of this machine it sees, read-only,
what the worker's interpreter is made of and nothing else, no secret and no socket but the one that it answers on. It lives for a moment,
and bears the worker's labels. Whoever may use the engine may do that.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from docker.types import Healthcheck

from stage_workers.runtimes import namespace_helper
from stage_workers.runtimes.base import Listener, RuntimeFault
from stage_workers.runtimes.docker.engine import Engine, gone_is
from stage_workers.runtimes.docker.orphans import remove
from stage_workers.runtimes.helper import heard
from stage_workers.runtimes.network import listener_of

_SENT_S = 30.0
_ROOT = "/host"
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/nix/store")


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
                        _, found = await heard(channel, 1, 1)
            except TimeoutError:
                said = await engine.call("the helper can't be asked", lambda client: client.logs(helper, tail=3))
                raise RuntimeFault(
                    "the sandbox's network can't be entered: run the worker as root on the engine's own machine, or use a rootless "
                    f"engine (the helper said: {said.decode('utf-8', 'replace').strip() or 'nothing'})"
                ) from None
        finally:
            await asyncio.shield(asyncio.ensure_future(remove(engine, helper)))
    if not found:
        raise RuntimeFault("the helper in the sandbox's network sent no socket")
    return listener_of(socket.socket(fileno=found[0]))


def _create(client: Any, image: str, container: str, path: str, labels: Mapping[str, str]) -> str:
    # Links are resolved here: inside, the interpreter must be found by the file that it is.
    helper = Path(namespace_helper.__file__).resolve()
    interpreter = Path(sys.executable).resolve()
    binds = binds_of((Path(sys.base_prefix).resolve(), interpreter, helper, Path(path).parent))
    made = client.create_container(
        image,
        ["chroot", _ROOT, str(interpreter), "-I", "-S", str(helper), "send", path],
        entrypoint=[],
        user="0",
        labels=dict(labels),
        # What an image wants to be asked regularly would run beside the helper.
        healthcheck=Healthcheck(test=["NONE"]),
        use_config_proxy=False,
        host_config=client.create_host_config(
            network_mode=f"container:{container}",
            binds=binds,
            cap_drop=["ALL"],
            cap_add=["SYS_CHROOT", "DAC_READ_SEARCH", "DAC_OVERRIDE"],
            security_opt=["no-new-privileges"],
        ),
    )
    return str(made["Id"])


def binds_of(wanted: Sequence[Path]) -> dict[str, dict[str, str]]:
    """What of this machine the helper sees, as the engine takes it: the system's programs and libraries, and what is `wanted`."""
    # The engine would make a directory of what isn't there.
    shown = [place for place in (*map(Path, _SYSTEM), *wanted) if place.exists()]
    top = {place for place in shown if not any(other in place.parents for other in shown)}
    if Path("/") in top:
        raise RuntimeFault("the worker's interpreter is installed at /: a sandbox would see all of this machine")
    return {str(place): {"bind": f"{_ROOT}{place}", "mode": "ro"} for place in sorted(top)}
