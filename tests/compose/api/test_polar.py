"""Polar's clients: their requests are understood or refused by name, their answers have Polar's shape."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from compose.api.polar.mapping import task_of
from compose.api.polar.models import PolarTaskRequest
from compose.api.polar.results import trace as polar_trace
from compose.api.problems import ApiError
from schemas.records import ControlAction, Held, Stage, Status, TurnSpan
from tests.compose.api import facts
from tests.compose.api.conftest import settled
from tests.trainer_sink.scored import trace


def request(**fields: Any) -> dict[str, Any]:
    """The smallest of Polar's requests."""
    return {"task_id": "p-1", "instruction": "hi", "agent": {"harness": "shell", "custom_shell": "true"}, **fields}


def mapped(**fields: Any) -> dict[str, Any]:
    """Our task for a request."""
    return task_of(PolarTaskRequest.model_validate(request(**fields))).model_dump(mode="json")


def test_the_defaults_are_polars() -> None:
    """One sample, 600 seconds, one trace for each request."""
    task = mapped()
    assert (task["num_samples"], task["budgets"]["run_s"], task["builder"]["name"]) == (1, 600.0, "per_request")
    assert task["harness"] == {"name": "shell", "version": None, "options": {"command": "true"}}
    assert task["evaluator"]["name"] == "session_completed"


def test_every_field_that_has_a_counterpart_arrives_there() -> None:
    """The whole flat request of the published example."""
    task = mapped(
        num_samples=8,
        timeout_seconds=1200,
        dispatch_priority=7,
        early_stop_min_usable_sessions=4,
        runtime={
            "backend": "docker",
            "image": "img:1",
            "cpus": 2,
            "memory_mb": 4096,
            "network": "host",
            "prepare": [{"type": "exec", "command": "make", "cwd": "/a b", "env": {"X": "1 2"}}],
            "eval_prepare": [{"type": "exec", "command": "true"}],
        },
        agent={"harness": "pi", "model_name": "m", "settings": {"reasoning": True}},
        builder={"strategy": "prefix_merging", "config": {"drift": "split"}},
        evaluator={
            "strategy": "swebench_harness",
            "refresh_runtime": True,
            "config": {"repo_dir": "/testbed", "test_timeout": 60, "instance": {"repo": "a/b"}},
        },
        metadata={"agent_timeout": 900, "group_id": "g"},
    )
    assert (task["num_samples"], task["priority"], task["min_usable"]) == (8, 7, 4)
    assert task["runtime"] | {"options": {}} == {
        **task["runtime"],
        "kind": "docker",
        "image": "img:1",
        "cpus": 2.0,
        "memory_mb": 4096,
        "network": "egress",
        "options": {},
    }
    assert task["prepare"][0]["exec"] == "cd '/a b' && { export X='1 2'; make\n}"
    assert task["eval_prepare"][0]["exec"] == "true"
    assert task["harness"]["options"] == {"reasoning": True}
    assert task["builder"] == {"name": "prefix_merging", "options": {"drift": "split"}}
    assert task["evaluator"]["name"] == "swebench"
    assert task["evaluator"]["fresh"] is True
    assert task["evaluator"]["options"] == {"repo_dir": "/testbed", "test_timeout_s": 60, "instance": {"repo": "a/b"}}
    assert task["budgets"] == {
        "queue_s": 3600.0,
        "init_s": 1200.0,
        "run_s": 900.0,
        "postrun_s": 1200.0,
        "evaluate_s": 1200.0,
    }
    assert (task["metadata"]["group_id"], task["callback_body"]) == ("g", "polar")


@pytest.mark.parametrize(
    ("runtime", "network"),
    [
        ({}, "model_only"),
        ({"network": "none"}, "model_only"),
        ({"network": "host", "allow_internet": False}, "model_only"),
        ({"network": "bridge"}, "egress"),
        ({"allow_internet": True}, "egress"),
    ],
)
def test_a_network_is_given_only_where_it_is_asked_for(runtime: dict[str, Any], network: str) -> None:
    """Polar's default is the host's network; here it has to be said."""
    assert mapped(runtime={"image": "i", **runtime})["runtime"]["network"] == network


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"agent": {"import_path": "a:B"}}, "agent.import_path"),
        ({"agent": {"harness": "pi", "env": {"A": "b"}}}, "agent.env"),
        ({"agent": {"harness": "pi", "skills_path": "/s"}}, "agent.skills_path"),
        ({"agent": {"harness": "pi", "custom_shell": "x"}}, "agent.custom_shell"),
        ({"agent": {}}, "agent.harness"),
        ({"runtime": {"image": "i", "gpus": 1}}, "runtime.gpus"),
        ({"runtime": {"image": "i", "storage_mb": 1}}, "runtime.storage_mb"),
        ({"runtime": {"image": "i", "kwargs": {"volumes": []}}}, "runtime.kwargs"),
        ({"runtime": {"image": "i", "env": {"A": "b"}}}, "runtime.env"),
        ({"runtime": {"image": "i", "workdir": "/w"}}, "runtime.workdir"),
        ({"runtime": {"image": "i", "import_path": "a:B"}}, "runtime.import_path"),
        ({"runtime": {"image": "i", "prepare": [{"type": "upload_file"}]}}, "runtime.prepare[0].type"),
        ({"evaluator": {"strategy": "session_completed", "env": {"A": "b"}}}, "evaluator.env"),
        ({"evaluator": {"strategy": "os:system"}}, "evaluator.strategy"),
        ({"metadata": {"agent_timeout": -1}}, "metadata.agent_timeout"),
        ({"metadata": {"agent_timeout": 10**400}}, "metadata.agent_timeout"),
        ({"metadata": {"agent_timeout": True}}, "metadata.agent_timeout"),
        ({"builder": {"strategy": "router_policy"}}, "builder.name"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(fields: dict[str, Any], path: str) -> None:
    """Never dropped in silence."""
    with pytest.raises(ApiError) as refused:
        mapped(**fields)
    assert refused.value.status == 422
    assert [error.path for error in refused.value.errors] == [path]


async def test_unknown_fields_are_refused(client):
    """As everywhere: with their path."""
    answer = await client.post("/rollout/task/submit", json=request(agnt={}))
    assert answer.status_code == 422
    assert answer.json()["errors"] == [{"path": "agnt", "problem": "there is no such field"}]


async def test_a_task_is_followed_in_polars_words(client, memory_bus):
    """Submitted, running, completed with whole results; submitting it again says so, and another one under its id is 409."""
    first = await client.post("/rollout/task/submit", json=request(num_samples=2))
    assert (first.status_code, first.json()) == (200, {"task_id": "p-1", "status": "running"})
    await facts.registered(memory_bus, "p-1", 2)
    await facts.ran(memory_bus, "p-1", 0)
    await facts.told(memory_bus, "p-1", 0, 2)
    await settled(client)
    running = (await client.get("/rollout/task/p-1")).json()
    assert (running["status"], running["total_sessions"], running["completed_sessions"]) == ("running", 2, 1)
    await facts.told(memory_bus, "p-1", 1, 2, status=Status.CANCELLED)
    await settled(client)
    done = (await client.get("/rollout/task/p-1")).json()
    assert done["status"] == "completed"
    assert [r["status"] for r in done["results"]] == ["COMPLETED", "ERROR"]
    (one,) = done["results"][0]["trajectory"]["traces"]
    assert one["loss_mask"] == [1, 1, 0]
    assert one["response_logprobs"] == [-0.5, -0.5, 0.0]
    assert done["results"][0]["trajectory"]["metadata"]["evaluation"]["outcome_reward"] == 1.0
    assert done["results"][0]["node_id"] == "worker-1"
    again = await client.post("/rollout/task/submit", json=request(num_samples=2))
    assert again.json() == {"task_id": "p-1", "status": "completed"}
    assert (await client.post("/rollout/task/submit", json=request(num_samples=3))).status_code == 409
    assert (await client.get("/rollout/task/nobody")).status_code == 404


async def test_the_overview_and_the_nodes(client, memory_bus):
    """Tasks by status, what waits, and workers as gateway nodes; draining one asks it to."""
    await facts.registered(memory_bus, "p-1", 2)
    await memory_bus.publish(facts.beat("worker-1", holds=[Held(session_id="s", stage=Stage.RUNNING)]))
    await memory_bus.publish(facts.beat("proxy-1", "proxy"))
    await settled(client)
    overview = (await client.get("/rollout/status")).json()
    assert overview["tasks"] == {"p-1": "running"}
    assert overview["pipeline"] == {"pending_sessions": 2}
    (node,) = (await client.get("/nodes")).json()["nodes"]
    assert (node["node_id"], node["max_run_workers"], node["metrics"]["run_inflight"]) == ("worker-1", 3, 1)
    assert (await client.delete("/nodes/worker-1")).json()["draining"] is True
    (control,) = [d.decode() for d in memory_bus.records("rollout.control")]
    assert (control.action, control.target, control.target_kind) == (ControlAction.DRAIN, "worker-1", "node")
    assert (await client.get("/nodes/proxy-1")).status_code == 404
    assert (await client.get("/health")).json() == {"status": "ok", "nodes": 1}


@pytest.mark.parametrize(
    ("roles", "turns", "at"),
    [
        (["user", "assistant"], 1, 1),
        (["system", "user", "assistant", "tool", "assistant"], 2, 2),
        # The first answer was in the prompt already: a trace that began anew.
        (["user", "assistant", "user", "assistant"], 1, 3),
        (["user"], 0, 1),
        (["user"], 1, 1),
    ],
)
def test_messages_are_split_where_the_first_sampled_one_stands(roles: list[str], turns: int, at: int) -> None:
    """What stands before it is the prompt's."""
    messages = [{"role": role, "content": str(n)} for n, role in enumerate(roles)]
    spans = [TurnSpan(completion_id=str(n), start=n, end=n + 1) for n in range(turns)]
    made = polar_trace(dataclasses.replace(trace(0), messages=messages, turns=spans))
    assert (made["prompt_messages"], made["response_messages"]) == (messages[:at], messages[at:])
