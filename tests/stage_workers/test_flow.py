"""A session's life on a worker, with real processes, the bus in memory, and the test as orchestrator and proxy."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import pytest

from bus.memory import MemoryBus
from schemas import ids
from schemas.records import Boundary, SessionEventType, Stage, Status
from stage_workers.runtimes.processes import Family, members
from tests.stage_workers.world import World, task, world

WRITE_ENV = 'env > env.txt; printf "%s" {instruction} > said.txt'


@pytest.fixture
async def around(memory_bus: MemoryBus, tmp_path: Path):
    async with world(memory_bus, tmp_path / "state") as made:
        yield made


def processes_of(around: World) -> set[int]:
    return members(Family(directory=str((around.settings.state_dir / "runtimes").resolve())))


async def test_good_session(around: World) -> None:
    """INIT, lease, run, seal, grading: the facts come in this order, and the reward before `graded`."""
    spec = task(
        "cat input.txt && printf '%s' hello",
        prepare=[{"upload": {"path": "input.txt", "content": "given"}}, {"exec": "test -s input.txt"}],
        post_run=[{"exec": "touch after"}],
        evaluator={"name": "command", "options": {"command": "test -f after && test -f input.txt"}},
    )
    graded = await around.to_graded("s1", spec)
    assert around.kinds("s1") == ["ready", "started", "finished", "sealed", "graded"]
    _, started, finished, sealed, _ = around.events("s1")
    assert {event.lease_id for event in (started, finished, sealed, graded)} == {ids.lease_id("s1", 1)}
    assert (finished.status, finished.boundary, finished.exit_code) == (Status.COMPLETED, Boundary.NONE, 0)
    assert started.writers == sealed.writers == [1]
    assert (graded.status, graded.expects_reward, graded.rewards) == (Status.COMPLETED, True, ["reward"])
    (reward,) = around.rewards()
    assert (reward.value, reward.lease_id, reward.grader, reward.provenance) == (
        1.0,
        ids.lease_id("s1", 1),
        "command",
        "evaluator",
    )
    assert reward.trajectory_id == ids.trajectory_id("s1", ids.lease_id("s1", 1), "prefix_merging")
    await around.let_go("s1")
    assert not list((around.settings.state_dir / "runtimes").iterdir())
    log = around.settings.state_dir / "logs" / "s1" / "attempt-1" / "stdout.log"
    assert log.read_text() == "givenhello"


async def test_lease_is_opened_with_the_hash_only(around: World) -> None:
    """The proxy gets the hash of the secret, the harness the secret; it is in no fact and in no argv."""
    spec = task(WRITE_ENV, evaluator={"name": "command", "options": {"command": "cat env.txt said.txt; exit 1"}})
    spec["evaluator"]["options"]["command"] = "cp env.txt said.txt " + str(around.settings.state_dir)
    await around.to_graded("s1", spec)
    env = dict(
        line.split("=", 1) for line in (around.settings.state_dir / "env.txt").read_text().splitlines() if "=" in line
    )
    secret = env["OPENAI_API_KEY"]
    (opened,) = around.proxy.opened
    assert opened["secret_hash"] == ids.secret_hash(secret)
    assert opened["writer"] == 1
    assert opened["spec"]["policy_id"] == "my-policy"
    assert secret not in json.dumps(around.proxy.opened)
    address = env["ANTHROPIC_BASE_URL"].removesuffix(f"/s/{secret}")
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+", address)
    assert address != around.proxy.data_address  # the worker's own socket, which outlives proxies
    assert env["OPENAI_BASE_URL"] == f"{address}/s/{secret}/v1"
    assert env["OPENAI_MODEL"] == "my-policy"
    assert (around.settings.state_dir / "said.txt").read_text() == "Do it"
    for topic in ("rollout.sessions", "rollout.nodes", "reward.assigned"):
        assert not any(secret.encode() in item.value for item in around.bus.records(topic))
    (sealed,) = around.proxy.sealed
    assert (sealed["lease_id"], sealed["writer"]) == (ids.lease_id("s1", 1), 1)


async def test_finished_is_told_before_the_seal(around: World) -> None:
    """`finished` doesn't wait for the proxy; `sealed` follows the proxy's answer."""
    seen: list[list[str]] = []
    around.proxy.before_seal = lambda: seen.append(around.kinds("s1"))
    around.proxy.seal_refusals = [503]
    await around.to_sealed("s1", task("true"))
    assert len(seen) == 2
    assert seen[-1] == ["ready", "started", "finished"]


async def test_failing_harness(around: World) -> None:
    """A harness that exits with another code than 0 failed at the boundary `harness`; it is sealed and can be graded."""
    spec = task("echo broken >&2; exit 7")
    await around.to_graded("s1", spec)
    finished = around.events("s1")[2]
    assert (finished.status, finished.boundary, finished.exit_code) == (Status.FAILED, Boundary.HARNESS, 7)
    assert "exited with 7" in finished.error
    assert "broken" in finished.error
    assert [reward.value for reward in around.rewards()] == [0.0]


async def test_run_deadline(around: World) -> None:
    """A harness that runs out of time is killed with its tree, told as `timeout`, and still sealed and graded."""
    spec = task("setsid sleep 60 & sleep 60", budgets={"run_s": 0.7})
    sealed = await around.to_sealed("s1", spec)
    assert not processes_of(around)
    finished = around.events("s1")[2]
    assert (finished.status, finished.boundary) == (Status.TIMEOUT, Boundary.HARNESS)
    assert sealed.writers == [1]
    await around.command(Stage.POSTRUN, "s1", spec)
    graded = await around.heard(SessionEventType.GRADED, "s1")
    assert graded.expects_reward


async def test_failing_prepare_step(around: World) -> None:
    """A failing `prepare` step is `init_failed` at the boundary `sandbox`, with the step and what it said."""
    await around.command(
        Stage.INIT, "s1", task("true", prepare=[{"exec": "true"}, {"exec": "echo no disk >&2; exit 9"}])
    )
    failed = await around.heard(SessionEventType.INIT_FAILED, "s1")
    assert (failed.status, failed.boundary) == (Status.FAILED, Boundary.SANDBOX)
    assert "prepare[1] exited with 9: no disk" in failed.error
    await around.let_go("s1")


async def test_slow_prepare_step(around: World) -> None:
    """A step that overruns its own budget fails INIT, and its processes are gone."""
    await around.command(Stage.INIT, "s1", task("true", prepare=[{"exec": "sleep 60", "budget_s": 0.3}]))
    failed = await around.heard(SessionEventType.INIT_FAILED, "s1")
    assert "prepare[0] took longer than its budget_s of 0.3" in failed.error
    assert not processes_of(around)


async def test_init_budget(around: World) -> None:
    """INIT as a whole has a budget too."""
    spec = task("true", prepare=[{"exec": "sleep 60"}], budgets={"init_s": 0.4})
    await around.command(Stage.INIT, "s1", spec)
    failed = await around.heard(SessionEventType.INIT_FAILED, "s1")
    assert (failed.status, failed.boundary) == (Status.TIMEOUT, Boundary.SANDBOX)
    assert "budgets.init_s" in failed.error


async def test_unknown_harness_fails_init(around: World) -> None:
    """A harness that this worker doesn't know is `init_failed` at the boundary `harness`."""
    spec = task() | {"harness": {"name": "nobody"}}
    await around.command(Stage.INIT, "s1", spec)
    failed = await around.heard(SessionEventType.INIT_FAILED, "s1")
    assert failed.boundary is Boundary.HARNESS
    assert "there is no harness `nobody`" in failed.error


async def test_foreign_runtime_fails_init(around: World) -> None:
    """A runtime that this worker can't make is `init_failed` at the boundary `sandbox`."""
    await around.command(Stage.INIT, "s1", task(runtime={"kind": "docker"}))
    failed = await around.heard(SessionEventType.INIT_FAILED, "s1")
    assert failed.boundary is Boundary.SANDBOX
    assert failed.error == "runtime.image: runtime `docker` needs an image (NAME:TAG)"


async def test_failing_evaluator(around: World) -> None:
    """An evaluator that can't grade is `graded` with its boundary, and no reward is expected."""
    spec = task(evaluator={"name": "command", "options": {"command": "echo many", "score": "printed"}})
    graded = await around.to_graded("s1", spec)
    assert (graded.status, graded.boundary, graded.expects_reward) == (Status.FAILED, Boundary.EVALUATOR, False)
    assert "no finite number: many" in graded.error
    assert around.rewards() == []


async def test_slow_evaluator(around: World) -> None:
    """An evaluator has its own budget: its time-out doesn't touch the run's outcome."""
    spec = task(evaluator={"name": "command", "options": {"command": "sleep 60"}}, budgets={"evaluate_s": 0.3})
    graded = await around.to_graded("s1", spec)
    assert (graded.status, graded.boundary, graded.expects_reward) == (Status.TIMEOUT, Boundary.EVALUATOR, False)
    assert around.events("s1")[2].status is Status.COMPLETED
    assert not processes_of(around)


async def test_failing_post_run_step(around: World) -> None:
    """A failing `post_run` step is the sandbox's fault; nothing is graded on its ruins."""
    graded = await around.to_graded("s1", task(post_run=[{"exec": "exit 4"}]))
    assert (graded.status, graded.boundary, graded.expects_reward) == (Status.FAILED, Boundary.SANDBOX, False)
    assert "post_run[0] exited with 4" in graded.error


async def test_no_proxy(memory_bus: MemoryBus, tmp_path: Path) -> None:
    """Without a proxy the run fails at the boundary `provider`; no writer was opened, and the session is sealed so."""
    async with world(memory_bus, tmp_path / "state", has_proxy=False, open_deadline_s=0.5) as around:
        await around.to_ready("s1", task())
        await around.command(Stage.RUNNING, "s1", task())
        sealed = await around.heard(SessionEventType.SEALED, "s1")
        finished = around.events("s1")[-2]
        assert (finished.status, finished.boundary) == (Status.FAILED, Boundary.PROVIDER)
        assert "no proxy has announced itself" in finished.error
        assert sealed.writers == []


async def test_open_is_tried_again(around: World) -> None:
    """A proxy that can't open now is asked again with the same writer number."""
    around.proxy.refusals = [503, 503]
    await around.to_sealed("s1", task())
    assert [opened["writer"] for opened in around.proxy.opened] == [1]
    assert around.events("s1")[2].status is Status.COMPLETED


async def test_refused_open(around: World) -> None:
    """A proxy that refuses ends the run at the boundary `provider`, without asking for ever."""
    around.proxy.refusals = [409]
    await around.to_ready("s1", task())
    await around.command(Stage.RUNNING, "s1", task())
    await around.heard(SessionEventType.SEALED, "s1")
    finished = around.events("s1")[-2]
    assert (finished.status, finished.boundary) == (Status.FAILED, Boundary.PROVIDER)
    assert "409" in finished.error


async def test_dead_proxy_is_the_provider(memory_bus: MemoryBus, tmp_path: Path) -> None:
    """A harness that fails while its proxy is gone isn't the one at fault."""
    async with world(memory_bus, tmp_path / "state", seal_deadline_s=0.3) as around:
        go = tmp_path / "go"
        spec = task(f"while [ ! -e {go} ]; do sleep 0.05; done; exit 1")
        await around.to_running("s1", spec)
        # The listener of the proxy is another one from now on: nobody answers at the old address.
        around.proxy.address = "http://127.0.0.1:1"
        await around.announce_proxy(incarnation="p2")
        await asyncio.to_thread(go.touch)
        sealed = await around.heard(SessionEventType.SEALED, "s1")
        finished = around.events("s1")[2]
        assert (finished.status, finished.boundary) == (Status.FAILED, Boundary.PROVIDER)
        assert sealed.writers == [1]
        assert sealed.details == {"is_sealed_at_proxy": False}


async def test_cancel_of_a_run(around: World) -> None:
    """Control(cancel) kills the harness; the run is told as cancelled, and sealed."""
    await around.to_running("s1", task("sleep 60"))
    await around.cancel("s1")
    await around.heard(SessionEventType.SEALED, "s1")
    finished = around.events("s1")[2]
    assert (finished.status, finished.boundary, finished.error) == (Status.CANCELLED, Boundary.NONE, "enough")
    assert not processes_of(around)
    await around.fact(SessionEventType.ENDED, "s1", status=Status.CANCELLED)
    await around.let_go("s1")


async def test_cancel_before_the_lease(around: World) -> None:
    """Without a lease there is nothing to tell: a cancelled READY session just goes."""
    await around.to_ready("s1", task())
    await around.cancel("group-1", "group")
    await around.let_go("s1")
    assert around.kinds("s1") == ["ready"]


async def test_cancel_between_grant_and_command(around: World) -> None:
    """A granted lease is told of even when it was never used."""
    await around.to_ready("s1", task())
    await around.grant("s1")
    await around.until(lambda: any(held.lease_id for beat in around.beats()[-1:] for held in beat.holds), "the grant")
    await around.fact(SessionEventType.CANCEL_REQUESTED, "s1", error="stop it")
    sealed = await around.heard(SessionEventType.SEALED, "s1")
    assert sealed.writers == []
    assert around.kinds("s1") == ["ready", "finished", "sealed"]
    assert around.events("s1")[1].status is Status.CANCELLED
    assert around.proxy.opened == []


@pytest.mark.parametrize("has_run", [True, False], ids=["graded", "running"])
async def test_an_early_stop_spares_what_has_run(around: World, has_run: bool) -> None:
    """Its group has enough: a run is stopped and sealed, but one that only waits for its grade gets it."""
    await around.to_running("s1", task("true" if has_run else "sleep 60"))
    if has_run:
        await around.heard(SessionEventType.SEALED, "s1")
    stop = {"error": "enough", "details": {"early_stop": True}}
    await around.fact(SessionEventType.CANCEL_REQUESTED, "s1", **stop)
    await around.heard(SessionEventType.SEALED, "s1")
    finished = around.events("s1")[2]
    assert finished.status is (Status.COMPLETED if has_run else Status.CANCELLED)
    if has_run:
        await around.command(Stage.POSTRUN, "s1", task("true"))
        graded = await around.heard(SessionEventType.GRADED, "s1")
        assert graded.status is Status.COMPLETED
    else:
        await around.fact(SessionEventType.ENDED, "s1", status=Status.CANCELLED)
    await around.let_go("s1")


async def test_terminal_fact_ends_a_run(around: World) -> None:
    """A session that ended elsewhere is killed, told as cancelled, sealed, and not kept for a grading."""
    await around.to_running("s1", task("sleep 60"))
    await around.fact(SessionEventType.ENDED, "s1", status=Status.CANCELLED)
    await around.heard(SessionEventType.SEALED, "s1")
    await around.let_go("s1")
    assert around.kinds("s1") == ["ready", "started", "finished", "sealed"]


async def test_lost_lease(around: World) -> None:
    """A worker that reads that its lease expired kills, tears down, and contributes nothing more."""
    await around.to_running("s1", task("sleep 60"))
    await around.fact(SessionEventType.LEASE_EXPIRED, "s1", lease_id=ids.lease_id("s1", 1))
    await around.let_go("s1")
    assert not processes_of(around)
    assert around.kinds("s1") == ["ready", "started"]
    assert around.proxy.sealed == []


async def test_lease_granted_elsewhere(around: World) -> None:
    """A READY session whose lease another worker got goes, silently."""
    await around.to_ready("s1", task())
    await around.grant("s1", worker_id="worker-2")
    await around.let_go("s1")
    assert around.kinds("s1") == ["ready"]


async def test_init_command_expires(around: World) -> None:
    """A READY session goes when its command's `expires_at` passes without a lease."""
    from tests.stage_workers.world import now_ms

    await around.to_ready("s1", task(), expires_at=now_ms() + 1500)
    await around.let_go("s1")
    assert around.kinds("s1") == ["ready"]


async def test_given_up_init(around: World) -> None:
    """An INIT that the orchestrator gave up is broken off."""
    await around.command(Stage.INIT, "s1", task(prepare=[{"exec": "sleep 60"}]))
    await around.until(lambda: around.beats()[-1].holds, "INIT")
    await around.fact(
        SessionEventType.INIT_LOST, "s1", worker_id=around.settings.worker_id, incarnation=around.incarnation
    )
    await around.let_go("s1")
    assert around.kinds("s1") == []
    assert not processes_of(around)


async def test_run_deadline_of_the_orchestrator(around: World) -> None:
    """The orchestrator's clock ends a run as a time-out."""
    await around.to_running("s1", task("sleep 60"))
    await around.fact(SessionEventType.DEADLINE_HIT, "s1", error="too long", stage=Stage.RUNNING)
    await around.heard(SessionEventType.SEALED, "s1")
    assert around.events("s1")[2].status is Status.TIMEOUT
    await around.command(Stage.POSTRUN, "s1", task())
    assert (await around.heard(SessionEventType.GRADED, "s1")).expects_reward


async def test_a_failure_does_not_tell_the_secret(around: World) -> None:
    """A harness that complains about its base URL: the complaint is told, the secret in it isn't."""
    await around.to_sealed("s1", task('echo "no route to $OPENAI_BASE_URL/chat" >&2; exit 3'))
    finished = around.events("s1")[2]
    assert finished.status is Status.FAILED
    assert re.search(r"no route to http://127\.0\.0\.1:\d+/s/\[secret\]/v1/chat", finished.error)


async def test_overtaken_deadline(around: World) -> None:
    """A deadline of a stage that the session has left doesn't touch the next one: the orchestrator ignores it too."""
    await around.to_ready("s1", task())
    await around.fact(SessionEventType.DEADLINE_HIT, "s1", error="too long", stage=Stage.INIT, round=0)
    await around.grant("s1")
    await around.command(Stage.RUNNING, "s1", task())
    await around.heard(SessionEventType.SEALED, "s1")
    await around.fact(SessionEventType.DEADLINE_HIT, "s1", error="too long", stage=Stage.RUNNING)
    await around.command(Stage.POSTRUN, "s1", task())
    graded = await around.heard(SessionEventType.GRADED, "s1")
    assert (graded.status, graded.expects_reward) == (Status.COMPLETED, True)


async def test_given_up_too_late(around: World) -> None:
    """A session that was ready when its INIT was given up can still be granted."""
    await around.to_ready("s1", task())
    await around.fact(
        SessionEventType.INIT_LOST, "s1", worker_id=around.settings.worker_id, incarnation=around.incarnation
    )
    await around.grant("s1")
    await around.command(Stage.RUNNING, "s1", task())
    assert (await around.heard(SessionEventType.FINISHED, "s1")).status is Status.COMPLETED


async def test_kafka_away(around: World) -> None:
    """A worker that can't reach Kafka goes on, and tells its facts in order once it can."""
    await around.to_running("s1", task(f"touch {around.settings.state_dir}/begun; sleep 0.5"))
    async with around.bus.outage():
        async with asyncio.timeout(20):
            while not around.proxy.sealed:
                await asyncio.sleep(0.02)
        assert around.kinds("s1") == ["ready", "started"]
    await around.heard(SessionEventType.SEALED, "s1")
    assert around.kinds("s1") == ["ready", "started", "finished", "sealed"]
