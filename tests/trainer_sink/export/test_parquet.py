"""The Parquet export: every trace once, exact tokens, a stable order, and everything left out is counted."""

from __future__ import annotations

import builtins
import dataclasses
import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from bus import Bus
from bus.memory import MemoryBus
from schemas import UnknownSchemaIdError, arrays, ids
from schemas.records import ScoredTrajectory, Status, Trace
from tests.trainer_sink.scored import scored, trace, whole
from trainer_sink.errors import SinkError
from trainer_sink.export import durable, parquet
from trainer_sink.export.parquet import ExportDependencyError, ExportReport, export_parquet, read_report

TOPIC = "trajectory.scored"


async def _publish(bus: Bus, *records: ScoredTrajectory) -> None:
    for record in records:
        await bus.publish(record)


def _rows(path: Path) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()  # type: ignore[no-any-return]


class Behaviours:
    """What holds on any bus."""

    async def test_one_row_for_each_trace(self, bus: Bus, tmp_path: Path) -> None:
        """Tokens, mask and logprobs come out exactly, beside the ids, the reward and the place on the log."""
        second = trace(1, prompt=[9], response=[8, 7], branch="sub-agent", parent_trace=0, weight=0.5, reward=0.75)
        one = scored("g", 0, 2, traces=[trace(), second], reward=0.25)
        await _publish(bus, one, scored("g", 1, 2, status=Status.FAILED, reward=None, error="boom"))
        path = tmp_path / "out.parquet"

        report = await export_parquet(bus, path)

        assert report == ExportReport(
            rows=2,
            sessions=2,
            groups=1,
            sessions_without_traces=1,
            without_traces_by_status={"failed": 1},
        )
        first, other = _rows(path)
        assert (first["prompt_ids"], first["response_ids"]) == ([1, 2], [3, 4, 5])
        assert (first["loss_mask"], first["logprobs"]) == ([1, 1, 0], [-0.5, -0.5, 0.0])
        assert (first["trainable_tokens"], first["trace_count"], first["session_index"]) == (2, 2, 0)
        assert (first["task_id"], first["group_id"], first["policy_id"]) == ("g", ids.group_id("g"), "policy-a")
        assert (first["status"], first["boundary"], first["reward"]) == ("completed", "none", 0.25)
        assert json.loads(first["rewards"])[0] | {"trace_rewards": None} == {
            "name": "reward",
            "value": 0.25,
            "trace_rewards": None,
            "grader": "command",
            "grader_version": "",
            "provenance": "",
        }
        assert json.loads(first["messages"]) == [{"role": "user", "content": "hi \ud800"}]
        assert json.loads(first["turns"])[0]["completion_id"] == "c0"
        assert json.loads(first["counts"])["calls"] == 2
        assert (other["branch"], other["parent_trace"], other["weight"]) == ("sub-agent", 0, 0.5)
        assert (other["trace_reward"], other["prompt_ids"]) == (0.75, [9])
        (stands,) = [d.position async for d in bus.tail([TOPIC], until_end=True) if d.decode() == one]
        assert (first["source_topic"], first["source_partition"], first["source_offset"]) == (
            TOPIC,
            stands.partition,
            stands.offset,
        )

    async def test_the_report_stands_in_the_file(self, bus: Bus, tmp_path: Path) -> None:
        """A file says by itself how many sessions it has no row for."""
        await _publish(bus, scored("g", 0, 1, status=Status.TIMEOUT, reward=None))
        path = tmp_path / "out.parquet"
        report = await export_parquet(bus, path)
        assert read_report(path) == report
        assert report.without_traces_by_status == {"timeout": 1}
        assert _rows(path) == []

    async def test_an_empty_log_gives_an_empty_file(self, bus: Bus, tmp_path: Path) -> None:
        """With all columns, so that readers don't stumble."""
        assert await export_parquet(bus, tmp_path / "deep" / "out.parquet") == ExportReport()
        assert "response_ids" in pq.read_schema(tmp_path / "deep" / "out.parquet").names


class TestInMemory(Behaviours):
    """On the in-memory bus."""

    @pytest.fixture
    def bus(self, memory_bus: MemoryBus) -> Bus:
        return memory_bus

    async def test_the_newest_revision_counts_once(self, bus: Bus, tmp_path: Path) -> None:
        """Repeats and older revisions are left out and counted."""
        new = scored("g", 0, 1, revision=2, reward=0.5)
        await _publish(bus, scored("g", 0, 1), new, new, scored("g", 0, 1))
        report = await export_parquet(bus, tmp_path / "out.parquet")
        assert [(r["revision"], r["reward"]) for r in _rows(tmp_path / "out.parquet")] == [(2, 0.5)]
        assert report.skipped == {"duplicates": 2, "revised": 1}

    async def test_the_order_does_not_depend_on_arrival(self, tmp_path: Path) -> None:
        """The same trajectories in another order give the same rows; the same log gives the same bytes."""
        records = [*whole("b", 2), *whole("a", 3)]
        tables = []
        for n, order in enumerate((records, records[::-1])):
            async with MemoryBus(partitions=3) as bus:
                await _publish(bus, *order)
                digests = set()
                for again in range(2):
                    path = tmp_path / f"{n}-{again}.parquet"
                    await export_parquet(bus, path)
                    digests.add(hashlib.sha256(path.read_bytes()).hexdigest())
                assert len(digests) == 1
            tables.append([(r["task_id"], r["session_index"]) for r in _rows(path)])
        assert tables[0] == tables[1] == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]

    async def test_filters_leave_out_and_count(self, bus: Bus, tmp_path: Path) -> None:
        """By policy, task and harness; off-context traces only when asked for; re-queued groups are in."""
        await _publish(
            bus,
            scored("mine", 0, 1),
            scored("requeued", 0, 1, spec={"for_trainer": "somebody"}),
            scored("theirs", 0, 1, spec={"policy_id": "other"}),
            scored("spliced", 0, 1, traces=[trace(is_off_context=True)]),
        )
        report = await export_parquet(bus, tmp_path / "a.parquet", policy_id="policy-a")
        assert [r["task_id"] for r in _rows(tmp_path / "a.parquet")] == ["mine", "requeued"]
        assert report.skipped == {"policy": 1, "off_context": 1}
        await export_parquet(bus, tmp_path / "b.parquet", task_ids=["spliced"], allow_off_context=True)
        assert [r["is_off_context"] for r in _rows(tmp_path / "b.parquet")] == [True]
        assert (await export_parquet(bus, tmp_path / "c.parquet", harness="pi")).rows == 0

    async def test_poison_and_torn_traces_are_counted(self, bus: Bus, tmp_path: Path) -> None:
        """An export stops for nothing that only concerns one record, and pads nothing."""
        torn = Trace(response_ids=b"\x00" * 5)
        unequal = dataclasses.replace(trace(), logprobs=arrays.pack_logprobs([0.0]))
        await bus.publish_raw(TOPIC, b"k", b"no frame")
        await _publish(
            bus,
            scored("torn", 0, 1, traces=[torn]),
            scored("unequal", 0, 1, traces=[unequal]),
            dataclasses.replace(scored("nospec", 0, 1), spec=None),
            scored("fine", 0, 1),
        )
        report = await export_parquet(bus, tmp_path / "out.parquet")
        assert report.skipped == {"spec_missing": 1, "torn": 2, "unreadable": 1}
        assert (report.rows, report.sessions) == (1, 1)

    async def test_an_unknown_schema_id_stops_the_export(self, bus: Bus, tmp_path: Path) -> None:
        """A file that lacks records of a newer release must not look complete; none is left behind."""
        await bus.publish_raw(TOPIC, b"k", struct.pack(">bI", 0, 4242) + b"x")
        with pytest.raises(UnknownSchemaIdError, match="4242"):
            await export_parquet(bus, tmp_path / "out.parquet")
        assert list(tmp_path.glob("*.parquet*")) == []

    async def test_a_failed_write_leaves_the_old_file(
        self, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The file appears whole or not at all, and no part stays behind."""
        path = tmp_path / "out.parquet"
        await _publish(bus, scored("g", 0, 1))
        await export_parquet(bus, path)
        before = path.read_bytes()

        def no_disk(_: Path) -> None:
            raise OSError("no space left on device")

        monkeypatch.setattr(durable, "sync", no_disk)
        with pytest.raises(OSError, match="no space"):
            await export_parquet(bus, path)
        assert path.read_bytes() == before
        assert [p.name for p in tmp_path.iterdir() if ".parquet" in p.name] == ["out.parquet"]

    async def test_row_groups_bound_the_memory(self, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A large log is written in several row groups, and reads as one table."""
        monkeypatch.setattr(parquet, "_ROW_GROUP_BYTES", 1)
        await _publish(bus, *whole("g", 4))
        await export_parquet(bus, tmp_path / "out.parquet")
        assert pq.ParquetFile(tmp_path / "out.parquet").num_row_groups == 4
        assert len(_rows(tmp_path / "out.parquet")) == 4

    async def test_long_traces_keep_their_types(self, bus: Bus, tmp_path: Path) -> None:
        """20k tokens with int32 ids and float32 logprobs come out bit for bit."""
        rng = np.random.default_rng(0)
        tokens = rng.integers(0, 150_000, 20_000)
        logprobs = rng.normal(size=20_000).astype(np.float32)
        long = dataclasses.replace(
            trace(response=tokens.tolist()),
            logprobs=arrays.pack_logprobs(logprobs),
        )
        await _publish(bus, scored("g", 0, 1, traces=[long]))
        await export_parquet(bus, tmp_path / "out.parquet")
        table = pq.read_table(tmp_path / "out.parquet")
        assert str(table.schema.field("response_ids").type.value_type) == "int32"
        assert np.array_equal(table["response_ids"][0].values.to_numpy(), tokens)
        assert np.array_equal(table["logprobs"][0].values.to_numpy(), logprobs)

    async def test_without_pyarrow_it_says_what_to_install(
        self, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The sink itself needs no pyarrow; the export asks for its extra."""
        real = builtins.__import__

        def missing(name: str, *rest: Any) -> Any:
            if name.startswith("pyarrow"):
                raise ImportError(name)
            return real(name, *rest)

        monkeypatch.setattr(builtins, "__import__", missing)
        with pytest.raises(ExportDependencyError, match=r"polynya\[trainer\]"):
            await export_parquet(bus, tmp_path / "out.parquet")

    def test_a_file_of_somebody_else_has_no_report(self, tmp_path: Path) -> None:
        """Reading the report of a foreign Parquet file names the file."""
        import pyarrow as pa

        pq.write_table(pa.table({"a": [1]}), tmp_path / "foreign.parquet")
        with pytest.raises(SinkError, match="foreign"):
            read_report(tmp_path / "foreign.parquet")


@pytest.mark.broker
class TestOnKafka(Behaviours):
    """On the real Kafka."""

    @pytest.fixture
    def bus(self, kafka_bus: Bus) -> Bus:
        return kafka_bus
