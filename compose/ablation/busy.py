"""How long the CPU engine has computed, as it counts itself."""

from __future__ import annotations

from typing import Final

import aiohttp

_WITHIN_S: Final = 10.0


async def busy_of(engine_url: str) -> float:
    """Seconds since the engine's start in which its model computed. Raises aiohttp.ClientError or TimeoutError."""
    timeout = aiohttp.ClientTimeout(total=_WITHIN_S)
    async with aiohttp.ClientSession(timeout=timeout) as http, http.get(f"{engine_url}/server_info") as answer:
        answer.raise_for_status()
        told = await answer.json()
    return float(told["internal_states"][0]["busy_s"])
