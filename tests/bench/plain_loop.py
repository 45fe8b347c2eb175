"""The baseline of the assembler: a plain aiokafka loop that reads, decodes and publishes the same, and understands nothing.

Every record goes out again as it is, as it would into a table's changelog; at a session's end a trajectory of the same size does.
Reads in batches, awaits the acknowledgements of a batch, commits. No merging, no tables, no recovery.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from bus import BusSettings, connect
from schemas.codec import decode
from schemas.records import CompletionRecord, SessionEvent, Trace, Trajectory
from schemas.topics import changelog_topic
from tests.bench.processes import say_ready

COPY_TOPIC = changelog_topic("bench", "copies")
"""Where the copies go: a topic like a table's changelog."""


def trajectory(event: SessionEvent, calls: list[CompletionRecord]) -> Trajectory:
    """One trace of a session's tokens, as large as what the assembler builds of append-only calls."""
    calls.sort(key=lambda call: call.call_seq)
    first, last = calls[0], calls[-1]
    response = last.suffix_ids[len(first.suffix_ids) :] + last.output_ids
    trace = Trace(
        prompt_ids=first.suffix_ids,
        response_ids=response,
        loss_mask=bytes(len(response) // 4),
        logprobs=bytes(len(response)),
        messages=last.messages,
    )
    return Trajectory(trajectory_id=event.session_id, session_id=event.session_id, traces=[trace])


async def loop(settings: BusSettings, sessions: int, result: Path) -> None:
    """Read until the trajectories of so many sessions are out; write how long that took."""
    options = settings.consumer_options("plain-loop")
    topics = [settings.physical("capture.completions"), settings.physical("rollout.sessions")]
    consumer = AIOKafkaConsumer(*topics, **options)
    producer = AIOKafkaProducer(**settings.producer_options())
    copies = settings.physical(COPY_TOPIC.name)
    calls: dict[str, list[CompletionRecord]] = {}
    ended: list[SessionEvent] = []
    handled = built = 0
    began = cpu = 0.0
    await consumer.start()
    await producer.start()
    async with connect(settings) as bus:
        while built < sessions:
            batch = await consumer.getmany(timeout_ms=250)
            if batch and not began:
                began, cpu = time.perf_counter(), time.process_time()
            pending = []
            for records in batch.values():
                for record in records:
                    fact = decode(record.value)
                    pending.append(await producer.send(copies, value=record.value, key=record.key))
                    if isinstance(fact, CompletionRecord):
                        handled += 1
                        calls.setdefault(fact.session_id, []).append(fact)
                    elif isinstance(fact, SessionEvent):
                        ended.append(fact)
            # The two topics aren't in step: a session ends once all its calls are here.
            done = [event for event in ended if len(calls.get(event.session_id, ())) == event.details["calls"]]
            ended = [event for event in ended if event not in done]
            for event in done:
                await bus.publish(trajectory(event, calls.pop(event.session_id)))
                built += 1
            await asyncio.gather(*pending)
            await consumer.commit()
    seconds = time.perf_counter() - began
    say_ready(result, {"records": handled, "seconds": seconds, "cpu_s": time.process_time() - cpu})
    await consumer.stop()
    await producer.stop()


def main() -> None:
    """Run one loop to its end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ready", type=Path, required=True)
    parser.add_argument("--bus", required=True)
    parser.add_argument("--sessions", type=int, required=True)
    arguments = parser.parse_args()
    settings = BusSettings.model_validate_json(arguments.bus)
    asyncio.run(loop(settings, arguments.sessions, arguments.ready))


if __name__ == "__main__":
    main()
