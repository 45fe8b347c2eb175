"""Whose fault a run's end is while there is no proxy to ask."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from schemas.records import Boundary, Status
from stage_workers.attribution import attributed
from stage_workers.model_socket import Tally
from stage_workers.sessions import Outcome


@pytest.mark.parametrize(
    ("status", "is_waited_for", "is_last_cut", "boundary"),
    [
        (Status.COMPLETED, False, False, Boundary.NONE),
        (Status.COMPLETED, True, False, Boundary.PROVIDER),
        (Status.COMPLETED, False, True, Boundary.PROVIDER),
        (Status.FAILED, False, False, Boundary.PROVIDER),
    ],
)
async def test_a_proxy_that_goes_after_the_last_answer_spoils_nothing(
    status: Status, is_waited_for: bool, is_last_cut: bool, boundary: Boundary
) -> None:
    """A run that ended well and waited for nothing stays a good one, though its lease is just on its way to another proxy."""
    keeper = SimpleNamespace(is_moving=True, is_waited_for=is_waited_for, tally=Tally(is_last_cut=is_last_cut))
    outcome = await attributed(cast("Any", None), cast("Any", None), cast("Any", keeper), Outcome(status=status))
    assert outcome.boundary is boundary
    assert (outcome.status is Status.COMPLETED) == (boundary is Boundary.NONE)
