"""Fixtures that every package's tests share: a real Kafka for the session, names that never meet, and the two buses.

Everything heavy is imported inside the fixtures: a test that needs no broker doesn't pay for one.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bus import KafkaBus
    from bus.memory import MemoryBus

COMPONENT_TESTS = (
    "tests/capture_proxy/test_",
    "tests/capture_proxy/engines/",
    "tests/capture_proxy/spool/",
    "tests/compose/cpu_engine/",
    "tests/compose/verify/",
    "tests/compose/kafka/",
    "tests/compose/test_supervisor",
    "tests/conformance/",
    "tests/stage_workers/",
    "tests/bench/",
)
"""Where tests run a whole part of ours, or trees of processes: correct without a broker, but not quick."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the component tests, so that `make test-fast` can leave them out."""
    for item in items:
        if item.nodeid.startswith(COMPONENT_TESTS):
            item.add_marker(pytest.mark.component)


TEST_PARTITIONS = 3
"""Enough for two keys to part, few enough that creating the topics for each test is quick."""


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The bootstrap address of a real Kafka: `POLYNYA_BOOTSTRAP`, or a broker of our own for the whole test session.

    A test that asks for it and can't have it fails in CI and is skipped elsewhere.
    """
    given = os.environ.get("POLYNYA_BOOTSTRAP")
    if given:
        yield given
        return
    from compose.kafka import KafkaCluster, KafkaUnavailable

    try:
        cluster = KafkaCluster(tmp_path_factory.mktemp("kafka")).start()
    except KafkaUnavailable as missing:
        if os.environ.get("CI"):
            pytest.fail(f"no Kafka to test with: {missing}")
        pytest.skip(f"no Kafka to test with: {missing}")
    try:
        yield cluster.bootstrap
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def docker_engine() -> Iterator[str]:
    """The address of a real Docker engine of the tests' own. Where none can be had: failed in CI, skipped elsewhere."""
    from tests.stage_workers.runtimes.engine import NoEngine, running_engine

    try:
        with running_engine() as host:
            yield host
    except NoEngine as missing:
        if os.environ.get("CI"):
            pytest.fail(f"no Docker engine to test with: {missing}")
        pytest.skip(f"no Docker engine to test with: {missing}")


@pytest.fixture(scope="session")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of one scripted CPU engine for the whole test session (policy: tests/e2e/policy.py)."""
    from tests.e2e.engine import running_engine

    with running_engine(tmp_path_factory.mktemp("engine")) as url:
        yield url


@pytest.fixture
def topic_prefix(request: pytest.FixtureRequest) -> str:
    """A topic prefix that no other test has; the test's name in it makes a broker's log readable."""
    name = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40]
    return f"{name}-{uuid.uuid4().hex[:10]}."


@pytest.fixture
async def memory_bus(tmp_path: Path) -> AsyncIterator[MemoryBus]:
    """A started in-memory bus with every topic of the catalogue."""
    from bus.memory import MemoryBus

    async with MemoryBus(partitions=TEST_PARTITIONS, blob_url=f"file://{tmp_path}/blobs") as bus:
        yield bus


@pytest.fixture
async def kafka_bus(kafka: str, topic_prefix: str, tmp_path: Path) -> AsyncIterator[KafkaBus]:
    """A started bus on the real Kafka, with every topic of the catalogue under this test's prefix."""
    from bus import BusSettings, connect
    from bus.admin import TopicAdmin

    settings = BusSettings(bootstrap=kafka, topic_prefix=topic_prefix, blob_url=f"file://{tmp_path}/blobs")
    async with TopicAdmin(settings) as admin:
        await admin.apply(partitions=TEST_PARTITIONS)
        async with connect(settings) as bus:
            yield bus
        await admin.delete_all()
