"""Several workers and proxies of one stack."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from compose.fleet import in_order, instances
from compose.settings import StackSettings


def settings(**fields: object) -> StackSettings:
    return StackSettings(state_dir=Path("/s"), **fields)  # type: ignore[arg-type]


def test_one_keeps_its_plain_name() -> None:
    """A stack with one worker and one proxy is as it always was."""
    for kind in ("worker", "proxy", "engine"):
        (only,) = instances(settings(), kind)
        assert (only.name, only.env) == (kind, {})
    assert settings().worker_dir == Path("/s/worker")


def test_several_differ_in_whatever_they_own() -> None:
    """Each has an id, a name for its files and a directory of its own; given ports follow each other."""
    stack = settings(workers=2, proxies=3, proxy_port=9000, forward_port=9100)
    one, two = instances(stack, "worker")
    assert (one.name, two.name) == ("worker-1", "worker-2")
    assert two.env == {"POLYNYA_PART_NAME": "worker-2", "POLYNYA_WORKER_ID": "worker-2"}
    assert settings(part_name="worker-2").worker_dir == Path("/s/worker-2")
    last = instances(stack, "proxy")[2]
    assert last.env == {
        "POLYNYA_PART_NAME": "proxy-3",
        "POLYNYA_PROXY_ID": "proxy-3",
        "POLYNYA_PROXY_PORT": "9002",
        "POLYNYA_FORWARD_PORT": "9102",
    }
    # They find each other's spools, so that one adopts what another left.
    assert settings(part_name="proxy-3").spools == settings(part_name="proxy-1").spools


def test_a_stack_is_taken_down_by_kind() -> None:
    """All workers go before any proxy, whatever their number; names that only begin alike aren't confused."""
    names = ["proxy-1", "worker-2", "processors", "proxy-2", "worker-1", "engine"]
    assert in_order(names, ("worker", "proxy", "api", "engine")) == [
        ["worker-2", "worker-1"],
        ["proxy-1", "proxy-2"],
        [],
        ["engine"],
    ]


def test_two_brokers_are_refused() -> None:
    """A cluster has one broker or three."""
    with pytest.raises(ValidationError, match="outvote"):
        settings(brokers=2)
