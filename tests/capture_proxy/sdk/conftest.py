"""Every driver, one after the other."""

from __future__ import annotations

import pytest

from capture_proxy.dialects import DIALECTS
from tests.capture_proxy.sdk.anthropic_driver import MessagesDriver
from tests.capture_proxy.sdk.driver import Driver
from tests.capture_proxy.sdk.google_driver import GoogleDriver
from tests.capture_proxy.sdk.openai_drivers import ChatDriver, ResponsesDriver

DRIVERS: list[Driver] = [ChatDriver(), ResponsesDriver(), MessagesDriver(), GoogleDriver()]
assert {driver.dialect for driver in DRIVERS} == set(DIALECTS)


@pytest.fixture(params=DRIVERS, ids=lambda driver: driver.name)
def sdk(request: pytest.FixtureRequest) -> Driver:
    """One API of one SDK."""
    found: Driver = request.param
    return found


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    """Whole or streamed."""
    return bool(request.param)
