"""Slips in the names of environment variables."""

from __future__ import annotations

from compose.environment import slips
from compose.settings import StackSettings


def test_a_slip_is_named_with_what_was_meant() -> None:
    """What is far from every setting may be anybody's; what is ours or isn't prefixed isn't looked at."""
    environment = {
        "POLYNYA_PROXI_PORT": "1",
        "POLYNYA_RUN_SLOT": "2",
        "PROXI_PORT": "1",
        "POLYNYA_HARNESS_DIR": "x",
        "POLYNYA_SESSION_ID": "x",
        "POLYNYA_BASE_URL_ANTHROPIC": "x",
    }
    assert slips(environment) == {
        "POLYNYA_PROXI_PORT": "POLYNYA_PROXY_PORT",
        "POLYNYA_RUN_SLOT": "POLYNYA_RUN_SLOTS",
    }


def test_what_a_stack_hands_its_parts_has_no_slip() -> None:
    """Every setting is known under the name that it has in the environment."""
    assert slips(StackSettings(admin_key="k").as_env()) == {}  # type: ignore[arg-type]
