"""The HTTP API of a whole stack: a task goes in over HTTP, its trajectories come out over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import Stack
from trainer_sink import PolynyaClient

pytestmark = [pytest.mark.broker, pytest.mark.e2e, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, engine_url: str) -> Iterator[Stack]:
    """A stack with an API."""
    state_dir: Path = tmp_path_factory.mktemp("api")
    with Stack(state_dir, engine_url, {"POLYNYA_API": "true"}).running() as stack:
        yield stack


def test_a_task_is_run_over_http_alone(stack: Stack) -> None:
    """Submit → wait → get_trajectories, with the address and the key that the commands print; the API may die in between."""
    url, key = (stack.cli("api", what).stdout.strip() for what in ("url", "key"))
    with PolynyaClient(url, key) as client:
        assert client.health()["status"] == "ok"
        assert {"worker", "proxy"} <= {node["role"] for node in client.nodes()}
        seen: list[int] = []
        task_id = client.submit(stack.agent_task("turns=2", num_samples=2))
        assert client.wait(task_id, 120, lambda state: seen.append(state.scored)).is_ended
        assert seen[-1] == 2
        trajectories = client.get_trajectories(task_id)
    assert [t.status for t in trajectories] == ["completed", "completed"]
    for trajectory in trajectories:
        trained = sum(int(trace.loss_mask.sum()) for trace in trajectory.traces)
        assert trained > 0
        for trace in trajectory.traces:
            assert len(trace.response_ids) == len(trace.loss_mask) == len(trace.logprobs)


def test_a_killed_api_comes_back_and_knows_all(stack: Stack) -> None:
    """SIGKILL: its successor has its address and reads the log; the client asks again meanwhile."""
    url, key = (stack.cli("api", what).stdout.strip() for what in ("url", "key"))
    with PolynyaClient(url, key) as client:
        task_id = client.submit(stack.agent_task("turns=1"))
        stack.kill("api")
        assert client.wait(task_id, 120).is_ended
        assert len(client.get_trajectories(task_id)) == 1
