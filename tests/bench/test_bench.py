"""The bench's own arithmetic, the shape of its file, and its load generator, without a broker."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from pathlib import Path

import pytest

from schemas.codec import decode, encode
from schemas.records import CompletionRecord, SessionEvent, SessionSealed
from tests.bench import __main__ as bench_main
from tests.bench.captured import SHAPES, Shape, session
from tests.bench.context import Bench
from tests.bench.errors import BenchError
from tests.bench.load import Target, chat_call, closed_loop
from tests.bench.processes import child
from tests.bench.report import Metric, added, as_json, compared, figure, percentile, plain, table, write


def test_a_percentile_is_the_nearest_rank() -> None:
    """The smallest value that the share of all values doesn't exceed, in whatever order they came."""
    values = [float(n) for n in range(100, 0, -1)]
    assert [percentile(values, share) for share in (0.01, 0.07, 0.5, 0.99, 1.0)] == [1, 7, 50, 99, 100]
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([1.0, 2.0], 0.5) == 1.0
    assert percentile([4.0], 0.99) == 4.0


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1.0], 0.0), ([1.0], 1.5)])
def test_a_percentile_of_nothing_is_an_error(values: list[float], share: float) -> None:
    """No values, or a share that is none, never give a number."""
    with pytest.raises(ValueError, match=r"measured|share"):
        percentile(values, share)


def test_ratios_say_how_many_times_the_baseline() -> None:
    """Of what is added, the ratio is of the whole; without a baseline there is none."""
    assert added("a", 5.0, "ms", 2.0) == Metric("a", 3.0, "ms", 2.0, 2.5)
    assert compared("b", 3.0, "1/s", 2.0) == Metric("b", 3.0, "1/s", 2.0, 1.5)
    assert compared("c", 3.0, "MiB", 0.0).ratio is None
    assert plain("d", 1.0, "s") == Metric("d", 1.0, "s", None, None)


def test_the_file_gives_each_metric_by_name(tmp_path: Path) -> None:
    """latest.json: metric name → value, unit, baseline, ratio; written whole, over an older one."""
    path = tmp_path / "deep" / "latest.json"
    write([plain("old", 1.0, "s")], path)
    write([compared("x", 3.0, "ms", 2.0), plain("y", 1.0, "s")], path)
    assert json.loads(path.read_text()) == {
        "x": {"value": 3.0, "unit": "ms", "baseline": 2.0, "ratio": 1.5},
        "y": {"value": 1.0, "unit": "s", "baseline": None, "ratio": None},
    }
    assert [p.name for p in path.parent.iterdir()] == ["latest.json"]


def test_a_name_stands_once_and_a_value_is_a_number() -> None:
    """Two metrics of one name would hide one another; NaN isn't JSON."""
    with pytest.raises(ValueError, match="two metrics are called x"):
        as_json([plain("x", 1.0, "s"), plain("x", 2.0, "s")])
    with pytest.raises(ValueError, match="JSON"):
        as_json([plain("x", float("nan"), "s")])


def test_the_table_has_a_row_per_metric() -> None:
    """Every metric with its numbers, three digits each."""
    shown = table([compared("x", 1234.5678, "ms", 0.5), plain("y", 2.0, "s")])
    assert [list(column.cells) for column in shown.columns] == [
        ["x", "y"],
        ["1,235", "2"],
        ["ms", "s"],
        ["0.500", ""],
        ["2469.14 x", ""],
    ]
    assert [figure(v) for v in (0.0, 9.876, 98.76, -1.5)] == ["0", "9.88", "98.8", "-1.50"]


async def test_a_failed_measurement_leaves_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The run goes on after an error, and says which measurement failed and why."""

    async def broken(bench: Bench) -> list[Metric]:
        raise BenchError("no engine")

    async def sound(bench: Bench) -> list[Metric]:
        return [plain("x", float(bench.size(100, 3)), "calls")]

    modules = {"tests.bench.proxy_latency": Namespace(measure=broken), "tests.bench.memory": Namespace(measure=sound)}
    monkeypatch.setattr(bench_main.importlib, "import_module", modules.__getitem__)
    said: list[str] = []
    metrics, problems = await bench_main.run(["proxy_latency", "memory"], Bench(tmp_path, quick=True, say=said.append))
    assert metrics == [plain("x", 3.0, "calls")]
    assert problems == ["proxy_latency: BenchError: no engine"]


async def test_a_measurement_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each has its time, and all together have theirs."""

    async def hanging(bench: Bench) -> list[Metric]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(bench_main.importlib, "import_module", lambda _: Namespace(measure=hanging))
    monkeypatch.setattr(bench_main, "WITHIN_S", 0.05)
    _, problems = await bench_main.run(["memory", "assembler"], Bench(tmp_path, say=lambda _: None))
    assert [problem.partition(" within")[0] for problem in problems] == ["memory: not done", "assembler: not done"]


def test_every_measurement_can_be_imported() -> None:
    """Each name that `--only` takes is a module with a `measure`."""
    for name in bench_main.MEASUREMENTS:
        assert callable(bench_main.importlib.import_module(f"tests.bench.{name}").measure)


@pytest.mark.parametrize("kilobytes", SHAPES)
def test_made_up_records_have_their_size(kilobytes: int) -> None:
    """Every call's record is within a percent of its size, and the session's facts add up."""
    facts = list(session(SHAPES[kilobytes], 1))
    sizes = [len(encode(f).value) for f in facts if isinstance(f, CompletionRecord)]
    assert len(sizes) == SHAPES[kilobytes].calls
    assert all(abs(size - kilobytes * 1000) < kilobytes * 10 for size in sizes)
    assert [f.last_seq for f in facts if isinstance(f, SessionSealed)] == [len(sizes)]
    assert isinstance(facts[-1], SessionEvent)
    assert decode(encode(facts[-1]).value).details == {"calls": len(sizes)}


def test_records_without_room_are_refused() -> None:
    """A shape whose tokens alone are larger than its records is an error, not a larger record."""
    with pytest.raises(ValueError, match="no room"):
        list(session(Shape(1_000, calls=1, first_tokens=1_000, reply_tokens=1, result_tokens=1), 1))


async def _serve(answer: bytes) -> tuple[asyncio.Server, str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
                for part in answer.split(b"|"):  # in several pieces, as streams come
                    writer.write(part)
                    await writer.drain()
                    await asyncio.sleep(0)
        except asyncio.IncompleteReadError:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


GOOD = (
    b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n|\r\n20\r\ndata: {"delta":{"content":"Yes"}}\n\n\r\n'
    b'|1c\r\ndata: {"finish_reason":"stop"}\r\ne\r\ndata: [DONE]\n\n\r\n|0\r\n|\r\n'
)


async def test_the_load_counts_good_answers() -> None:
    """Keep-alive calls over two connections: each is timed to its first text and to its end."""
    server, url = await _serve(GOOD)
    try:
        samples = await closed_loop([chat_call(url, "hi")] * 2, 20, within_s=10)
    finally:
        server.close()
    assert len(samples) == 20
    assert all(s.is_good and s.status == 200 and 0 < s.first_s <= s.total_s for s in samples)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\n|busy",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n|0\r\n\r\n",
    ],
)
async def test_the_load_refuses_bad_answers(answer: bytes) -> None:
    """An error, or a stream without its end, is no sample: its time would mean nothing."""
    server, url = await _serve(answer)
    try:
        with pytest.raises(BenchError, match="ended badly"):
            await closed_loop([chat_call(url, "hi")], 1, within_s=10)
    finally:
        server.close()


async def test_the_load_says_when_nothing_answers() -> None:
    """A port that nobody listens on is named."""
    with pytest.raises(BenchError, match=r"no connection to 127\.0\.0\.1:9"):
        await closed_loop([Target("127.0.0.1", 9, b"")], 1, within_s=10)


async def test_a_child_that_dies_early_is_an_error_and_one_that_lives_is_ended(tmp_path: Path) -> None:
    """What it printed is in the message; after the block no process is left."""
    dying = child("dying", ["-c", "raise SystemExit('no port')"], tmp_path)
    with pytest.raises(BenchError, match="no port"), dying as started:
        await started.ready(10)
    code = (
        "import sys, time, pathlib; from tests.bench.processes import say_ready; "
        "say_ready(pathlib.Path(sys.argv[1]), {'url': 'here'}); time.sleep(60)"
    )
    with child("living", ["-c", code, "{ready}"], tmp_path) as living:
        assert await living.url() == "here"
        assert living.rss_bytes() > 0
        assert living.cpu_s() >= 0
    assert living.popen.returncode is not None
