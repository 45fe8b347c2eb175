"""How commands reach the bus and the proxy: the running stack's addresses, or the settings'."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from bus import Bus, BusSettings, connect
from compose.errors import CommandError, dependency_down
from compose.runtime_info import running_info
from compose.settings import StackSettings, admin_key


def bus_settings(settings: StackSettings) -> BusSettings:
    """How to reach Kafka: POLYNYA_BOOTSTRAP, or the stack that runs in the state directory."""
    bootstrap, prefix = settings.bootstrap, settings.topic_prefix
    if not bootstrap:
        info = running_info(settings)
        if info is None or not info.bootstrap:
            raise dependency_down(
                f"no stack runs in {settings.state_dir}", hint="polynya up --detach, or set POLYNYA_BOOTSTRAP"
            )
        bootstrap, prefix = info.bootstrap, info.topic_prefix
    return BusSettings(bootstrap=bootstrap, topic_prefix=prefix, blob_url=settings.blobs, client_id="polynya-cli")


@asynccontextmanager
async def open_bus(settings: StackSettings) -> AsyncIterator[Bus]:
    """A started bus for one command."""
    async with connect(bus_settings(settings)) as bus:
        yield bus


async def call_admin(
    settings: StackSettings, admin_address: str, path: str, body: dict[str, object] | None = None
) -> dict[str, object]:
    """POST (without a body GET) to a proxy's admin listener; the decoded answer. CommandError with the proxy's own words otherwise."""
    method = "GET" if body is None else "POST"
    headers = {"Authorization": f"Bearer {admin_key(settings).get_secret_value()}"}
    timeout = aiohttp.ClientTimeout(total=60)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.request(method, admin_address + path, json=body, headers=headers) as answer,
        ):
            if answer.status != 200:
                raise CommandError(
                    f"the proxy at {admin_address} refused {path}: {answer.status} {await answer.text()}"
                )
            decoded: dict[str, object] = await answer.json()
            return decoded
    except (aiohttp.ClientError, TimeoutError) as exc:
        raise dependency_down(f"the proxy's admin listener at {admin_address} doesn't answer: {exc!r}") from exc
