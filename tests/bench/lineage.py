"""What the proxy adds to a call as a conversation grows, what a session's records weigh, and what its lineage takes in memory.

Sessions grow turn by turn through a real proxy, each turn on top of all before it. At some turns the same engine is asked directly, with
as many prompt ids: the difference is what the proxy adds, and it should hardly grow. The records are then read back from Kafka, and
weighed as deltas and as they would be if each held its whole prompt and conversation: their values, each compressed, wherever they lie
(`lineage_record_bytes`), and all that the same bus sends for them, batch, key and headers, with a blob in place of a value that is too
large (`lineage_sent_bytes`; blobs aren't compressed). `lineage_content_bytes` are those of the deltas that are new words and new ids.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import cramjam
import orjson
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from bus import BusSettings, SessionCall, connect, read_session
from bus.settings import CLAIM_CHECK_BYTES, MAX_BATCH_BYTES
from capture_proxy.engines.sglang_wire import ECHO_IDS
from schemas.codec import encode
from schemas.records import BlobReference, CompletionRecord
from tests.bench.context import Bench
from tests.bench.errors import BenchError
from tests.bench.processes import ROOT
from tests.bench.report import Metric, compared, percentile, plain
from tests.bench.servers import capture_proxy, fake_engine

TURNS = (1, 20, 100)
WEIGHED_TURNS = 51
NEW_CHARS = 2_500
"""Of each message: about 600 tokens of a turn, with the answer and the template."""
SYSTEM_CHARS = 26_000
"""With the tools a first prompt of about 9,000 tokens. The CLIs' own are between 1,500 (Pi) and 19,000 (Claude Code)."""
CONTEXT_LENGTH = 262_144
_ZSTD = 4
"""Its number in a batch's attributes."""
_ZSTD_LEVEL = 3
"""As the producer has it."""
AROUND = 2
"""Samples are taken at a turn and at so many beside it."""

_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{n}",
            "description": "Does one of the things that agents do to files, processes and the network. " * 4,
            "parameters": {"type": "object", "properties": {"path": {"type": "string", "description": "Where."}}},
        },
    }
    for n in range(20)
]


def corpus() -> str:
    """What agents read: source files and documentation, here our own."""
    files = sorted(
        [*ROOT.glob("capture_proxy/**/*.py"), *ROOT.glob("docs/*.md"), *ROOT.glob("stream_processors/**/*.py")]
    )
    return "\n".join(file.read_text() for file in files)


@dataclass(slots=True)
class Conversation:
    """One session as its harness holds it."""

    session_id: str
    url: str
    text: str
    at: int = 0
    messages: list[dict[str, Any]] = field(default_factory=list)
    prompt_tokens: int = 0

    def __post_init__(self) -> None:
        """The harness' own part."""
        self.messages.append({"role": "system", "content": self._read(SYSTEM_CHARS)})

    def _read(self, chars: int) -> str:
        """The next piece of the corpus, round and round."""
        start, self.at = self.at, (self.at + chars) % (len(self.text) - chars)
        return self.text[start : start + chars]

    def body(self) -> bytes:
        """The next turn's request."""
        self.messages.append({"role": "user", "content": self._read(NEW_CHARS)})
        request = {"model": "policy", "messages": self.messages, "tools": _TOOLS, "max_tokens": 64}
        return orjson.dumps({**request, "stream": True, "stream_options": {"include_usage": True}})


async def measure(bench: Bench) -> list[Metric]:
    """All sessions turn by turn, one call at a time."""
    model_dir = await asyncio.to_thread(bench.model_dir)
    directory = bench.work_dir / "lineage"
    sessions = bench.size(4, 2)
    turns = tuple(bench.size(turn, min(turn, 12)) for turn in TURNS)
    async with bench.topics("lineage") as bus, aiohttp.ClientSession() as http:
        with (
            fake_engine(directory, model_dir) as engine,
            capture_proxy(directory, model_dir, bus, await engine.url(), context_length=CONTEXT_LENGTH) as proxy,
        ):
            opened = await proxy.open_named(sessions + 1)
            text = corpus()
            first, *talks = [Conversation(s, url, text, at=100_000 * n) for n, (s, url) in enumerate(opened)]
            rss = proxy.child.rss_bytes()
            bench.say(f"{sessions} sessions of {max(turns) + AROUND} turns, about 600 new tokens each")
            await _grow([first], await engine.url(), http, (1, 3))  # whatever is done once, is done
            through, direct = await _grow(talks, await engine.url(), http, turns)
            await proxy.await_relayed()
            await proxy.require_all_finished()
            held = (await proxy.health())["lineage"]["bytes"]
            grown = proxy.child.rss_bytes() - rss
            metrics = _latencies(turns, through, direct)
            metrics.append(compared("lineage_bytes_per_session", held / len(opened), "B", grown / len(opened)))
            metrics += await _weigh(bus, talks[0].session_id, bench.size(WEIGHED_TURNS, 10))
    tokens = talks[0].prompt_tokens
    return [*metrics, plain("lineage_prompt_tokens_at_last_turn", tokens, "tokens")]


async def _grow(
    talks: list[Conversation], engine_url: str, http: aiohttp.ClientSession, turns: tuple[int, ...]
) -> tuple[dict[int, list[float]], dict[int, list[float]]]:
    """Seconds per call through the proxy and at the engine, by turn."""
    through: dict[int, list[float]] = {turn: [] for turn in turns}
    direct: dict[int, list[float]] = {turn: [] for turn in turns}
    await _call(http, f"{engine_url}/generate", _generate_body(10))  # opens the connection
    for number in range(1, max(turns) + AROUND + 1):
        at = next((turn for turn in turns if abs(turn - number) <= (AROUND if turn > 1 else 0)), None)
        for talk in talks:
            took, answer = await _call(http, f"{talk.url}/chat/completions", talk.body())
            talk.messages.append({"role": "assistant", "content": _text(answer)})
            talk.prompt_tokens = _prompt_tokens(answer)
            if at is not None:
                through[at].append(took)
                direct[at].append((await _call(http, f"{engine_url}/generate", _generate_body(talk.prompt_tokens)))[0])
    return through, direct


async def _call(http: aiohttp.ClientSession, url: str, body: bytes) -> tuple[float, bytes]:
    began = time.perf_counter()
    async with http.post(url, data=body, headers={"content-type": "application/json"}) as response:
        answer = await response.read()
        if response.status != 200:
            raise BenchError(f"{url} answered {response.status}: {answer[:200]!r}")
    return time.perf_counter() - began, answer


def _generate_body(tokens: int) -> bytes:
    ids = [100_000 + n % 1000 for n in range(tokens)]
    asks = {"stream": True, "return_logprob": True, "return_prompt_token_ids": tokens <= ECHO_IDS}
    return orjson.dumps({"rid": "direct", "input_ids": ids, "sampling_params": {"max_new_tokens": 64}, **asks})


def _events(answer: bytes) -> Iterator[Any]:
    for line in answer.splitlines():
        if line.startswith(b"data: {"):
            yield orjson.loads(line[6:])


def _text(answer: bytes) -> str:
    return "".join(c["delta"].get("content") or "" for event in _events(answer) for c in event["choices"])


def _prompt_tokens(answer: bytes) -> int:
    return next(int(event["usage"]["prompt_tokens"]) for event in _events(answer) if event.get("usage"))


def _latencies(turns: tuple[int, ...], through: dict[int, list[float]], direct: dict[int, list[float]]) -> list[Metric]:
    added_ms = {
        turn: 1000 * (percentile(through[turn], 0.5) - percentile(direct[turn], 0.5)) for turn in dict.fromkeys(turns)
    }
    metrics = [
        compared(f"lineage_added_turn_{turn}_p50", added, "ms", 1000 * percentile(direct[turn], 0.5))
        for turn, added in added_ms.items()
    ]
    last, middle, first = added_ms[turns[-1]], added_ms[turns[1]], added_ms[turns[0]]
    return [
        *metrics,
        plain("lineage_added_growth_p50", last - first, "ms"),  # the first turn's whole prompt is tokenized
        plain("lineage_added_growth_since_turn_20_p50", last - middle, "ms"),
    ]


async def _weigh(settings: BusSettings, session_id: str, turns: int) -> list[Metric]:
    """A session's first calls as they were sent, and as whole records."""
    async with connect(settings) as bus:
        calls = [call async for call in read_session(bus, session_id)][:turns]
    if len(calls) != turns or any(call.call.problem for call in calls):
        raise BenchError(f"{len(calls)} of {turns} calls came back: {[call.call.problem for call in calls]}")
    delta = sum(_compressed(call.record) for call in calls)
    full = sum(_compressed(_whole(call)) for call in calls)
    sent = [_as_sent(call.record) for call in calls]
    sent_full = [_as_sent(_whole(call)) for call in calls]
    ids_delta = sum(len(call.record.suffix_ids) // 4 for call in calls)
    return [
        compared(f"lineage_record_bytes_{WEIGHED_TURNS}_turns", delta, "B", full),
        compared(f"lineage_sent_bytes_{WEIGHED_TURNS}_turns", sum(sent), "B", sum(sent_full)),
        plain(f"lineage_content_bytes_{WEIGHED_TURNS}_turns", sum(_compressed(_content(c.record)) for c in calls), "B"),
        compared(
            f"lineage_prompt_ids_{WEIGHED_TURNS}_turns", ids_delta, "ids", sum(call.call.prompt_len for call in calls)
        ),
    ]


def _whole(call: SessionCall) -> CompletionRecord:
    return replace(
        call.record,
        prefix_len=0,
        prefix_digest="",
        suffix_ids=call.call.prompt(),
        messages_prefix=0,
        messages=call.call.messages(),
        tools=call.tools,
    )


def _content(record: CompletionRecord) -> CompletionRecord:
    """What no rule could leave out: new messages and ids, the reply and its log-probabilities."""
    return CompletionRecord(
        messages=record.messages,
        tools=record.tools,
        suffix_ids=record.suffix_ids,
        output_ids=record.output_ids,
        logprobs=record.logprobs,
        text=record.text,
    )


def _compressed(record: CompletionRecord) -> int:
    return len(bytes(cramjam.zstd.compress(encode(record).value, level=_ZSTD_LEVEL)))


def _as_sent(record: CompletionRecord) -> int:
    """The bytes of a record's batch, alone in it as a session's records are, and of its blob where it has one."""
    encoded = encode(record)
    value, blob = encoded.value, 0
    if len(value) > CLAIM_CHECK_BYTES:
        blob = len(value)
        value = encode(BlobReference(record_name=record.NAME, url="file:///" + "b" * 64, sha256="b" * 64)).value
    batch = DefaultRecordBatchBuilder(2, _ZSTD, 0, 1, 0, 0, MAX_BATCH_BYTES)
    batch.append(0, record.started_at, encoded.key, value, encoded.headers)
    return len(batch.build()) + blob
