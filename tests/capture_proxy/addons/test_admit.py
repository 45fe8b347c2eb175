"""The end of requests whose body doesn't come."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from mitmproxy.test import tflow

from capture_proxy.addons.admit import Admit
from tests.capture_proxy.addons.test_tunnel import Counting


@pytest.mark.parametrize(("version", "is_cut"), [("HTTP/1.1", True), ("HTTP/2.0", False)])
async def test_a_stalled_body_ends_no_other_call(version: str, is_cut: bool) -> None:
    """Over HTTP/2 one connection carries all calls of a harness: cutting it for one request would abort the others."""
    cut: list[str] = []
    recorder = Counting()
    admit = Admit(
        recorder,  # type: ignore[arg-type]
        SimpleNamespace(in_flight=0),  # type: ignore[arg-type]
        SimpleNamespace(sustained_s=0.0),  # type: ignore[arg-type]
        place=lambda _flow, _exchange: None,
        cut=lambda client_id, _why: cut.append(client_id),
        max_request_bytes=100,
        max_bodies_bytes=100,
        max_calls=1,
        max_lag_s=1.0,
        read_s=60.0,
    )
    flow = tflow.tflow()
    flow.request.http_version = version
    admit._give_up(flow)
    assert recorder.rejected == ["request_timeout"]
    assert flow.response is not None
    assert flow.response.status_code == 408
    assert cut == ([flow.client_conn.id] if is_cut else [])
