"""One try of one callback: a signed POST that follows nobody elsewhere."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import httpx

from compose.api.settings import ApiSettings
from trainer_sink.client.callbacks import DELIVERY_HEADER, EVENT_HEADER, SIGNATURE_HEADER, sign_callback

FAILING_S: Final = 5.0
"""After a failure a host isn't bothered for so long by results that it hasn't been told of yet."""

WHOLE_TIMES: Final = 6
"""A whole try may take so many times as long as one step of it: bodies may be large and lines slow."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a try went; `status_code` is 0 when nothing answered."""

    is_delivered: bool
    status_code: int
    error: str


class Sender:
    """Posts bodies. No redirects, no proxies of the environment, and the answer's body isn't read."""

    def __init__(self, settings: ApiSettings) -> None:
        assert settings.callback_key is not None
        self._key = settings.callback_key.get_secret_value()
        self._timeout_s = settings.callback_timeout_s
        self._http = httpx.AsyncClient(
            timeout=settings.callback_timeout_s,
            follow_redirects=False,
            trust_env=False,
            headers={"User-Agent": "polynya-callback", "Content-Type": "application/json"},
        )
        self._failing: dict[str, float] = {}

    async def post(self, url: str, body: bytes, *, event: str, delivery_id: str) -> Outcome:
        """Try once; any 2xx is a delivery."""
        headers = {
            EVENT_HEADER: event,
            DELIVERY_HEADER: delivery_id,
            SIGNATURE_HEADER: sign_callback(self._key, body, int(time.time())),
        }
        try:
            # The client's time-outs start anew with every byte; a host that answers one now and then must not hold the lane.
            async with (
                asyncio.timeout(WHOLE_TIMES * self._timeout_s),
                self._http.stream("POST", url, content=body, headers=headers) as response,
            ):
                code = response.status_code
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            outcome = Outcome(is_delivered=False, status_code=0, error=f"{type(error).__name__}: {error}")
        else:
            is_ok = 200 <= code < 300
            why = "" if is_ok else f"answered {code}" + (" (redirects aren't followed)" if 300 <= code < 400 else "")
            outcome = Outcome(is_delivered=is_ok, status_code=code, error=why)
        host = urlsplit(url).netloc
        if outcome.is_delivered:
            self._failing.pop(host, None)
        else:
            self._failing[host] = time.monotonic() + FAILING_S
        return outcome

    def is_failing(self, url: str) -> bool:
        """Whether the host has just failed, so that a first try would only hold up others."""
        host = urlsplit(url).netloc
        until_s = self._failing.get(host)
        if until_s is None:
            return False
        if time.monotonic() >= until_s:
            del self._failing[host]
            return False
        return True

    async def close(self) -> None:
        """Let the connections go."""
        await self._http.aclose()
