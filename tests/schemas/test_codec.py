"""The wire codec: round trips of every record, and one error class for each way of not decoding."""

from __future__ import annotations

import copy
import dataclasses
import io
import json
import pickle
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import avro.io
import avro.schema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas import codec, json_text, registry
from schemas.codec import MalformedRecordError, UnknownSchemaIdError
from schemas.json_text import JsonTextError
from schemas.records import (
    RECORD_TYPES,
    BlobReference,
    CompletionRecord,
    Control,
    Counts,
    Record,
    ScoredTrajectory,
    SessionEvent,
    SessionEventType,
    SessionSpec,
    Trace,
    Trajectory,
)
from tests.schemas.strategies import any_record, of_record

SOME = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
by_class = pytest.mark.parametrize("cls", RECORD_TYPES, ids=lambda c: c.NAME)


@by_class
@SOME
@given(data=st.data())
def test_round_trip(cls: type[Record], data: st.DataObject) -> None:
    """Every record comes back equal, with every field drawn, in its own types."""
    record = data.draw(of_record(cls))
    back = codec.decode(codec.encode(record).value)
    assert back == record
    assert type(back) is cls


@by_class
@SOME
@given(data=st.data())
def test_a_plain_avro_client_reads_it(cls: type[Record], data: st.DataObject) -> None:
    """A reader that knows only Confluent framing and the registry file decodes every record, field by field."""
    record = data.draw(of_record(cls))
    value = codec.encode(record).value

    entries = json.loads((registry.AVRO_DIR / "registry.json").read_text())
    magic, schema_id = struct.unpack_from(">bI", value)
    (entry,) = [e for e in entries if e["id"] == schema_id]
    text = (registry.AVRO_DIR / entry["record"] / f"v{entry['version']}.avsc").read_text()
    body = io.BytesIO(value[5:])
    read = avro.io.DatumReader(avro.schema.parse(text)).read(avro.io.BinaryDecoder(body))  # type: ignore[no-untyped-call]

    assert magic == 0
    assert body.read() == b""
    assert entry["record"] == cls.NAME
    plain = [n for n, hint in cls.__annotations__.items() if hint in ("str", "int", "bool", "IdBytes", "LogprobBytes")]
    assert {name: read[name] for name in plain} == {name: getattr(record, name) for name in plain}
    for name, hint in cls.__annotations__.items():
        if hint == "Json":
            assert json.loads(read[name]) == getattr(record, name)


@by_class
def test_defaults_round_trip(cls: type[Record]) -> None:
    """A record of nothing but defaults is valid."""
    assert codec.decode(codec.encode(cls()).value) == cls()


def test_absent_nested_records_read_as_their_defaults() -> None:
    """A null in place of a nested record with defaults reads as those defaults, an optional one as None."""
    record = codec.decode(codec.encode(Trajectory(session_id="s")).value)
    assert isinstance(record, Trajectory)
    assert record.counts == Counts()
    scored = codec.decode(codec.encode(ScoredTrajectory(group_id="g")).value)
    assert isinstance(scored, ScoredTrajectory)
    assert scored.trajectory is None


def test_lone_surrogates_become_question_marks_in_strings_and_stay_in_json() -> None:
    """Avro strings are UTF-8, which has no lone surrogates; JSON escapes them and keeps them."""
    record = CompletionRecord(text="a\ud800b\x00", messages=[{"content": "a\ud800b\x00"}], session_id="s")
    back = codec.decode(codec.encode(record).value)
    assert isinstance(back, CompletionRecord)
    assert back.text == "a?b\x00"
    assert back.messages == [{"content": "a\ud800b\x00"}]


def test_lone_surrogates_in_keys_and_map_keys_do_not_break_encoding() -> None:
    """A record whose key, header or map key holds one is still sent."""
    counts = Counts(untrainable={"bad\udfff": 1})
    encoded = codec.encode(Trajectory(session_id="s\ud800", counts=counts))
    back = codec.decode(encoded.value)
    assert encoded.key == b"s?"
    assert isinstance(back, Trajectory)
    assert back.counts.untrainable == {"bad?": 1}


def test_an_integer_beyond_64_bits_is_refused_in_a_typed_field() -> None:
    """Avro's long has 64 bits; a larger number names the record instead of wrapping."""
    with pytest.raises(MalformedRecordError, match="control"):
        codec.encode(Control(at=2**63))


def test_a_value_of_the_wrong_type_is_refused() -> None:
    """Text where a number belongs raises MalformedRecordError."""
    with pytest.raises(MalformedRecordError, match="control"):
        codec.encode(Control(at="soon"))  # type: ignore[arg-type]


def test_a_json_field_that_json_cannot_spell_is_refused() -> None:
    """An object without a JSON form raises MalformedRecordError, not a library's error."""
    with pytest.raises(MalformedRecordError, match="completion_record"):
        codec.encode(CompletionRecord(messages=[object()]))


def test_an_unknown_schema_id_is_retriable_and_named() -> None:
    """The reader is too old for the record: the message names the id and what to do."""
    with pytest.raises(UnknownSchemaIdError, match=r"schema id 4242 .*upgrade") as caught:
        codec.decode(struct.pack(">bI", 0, 4242) + b"body")
    assert caught.value.schema_id == 4242
    assert caught.value.is_retriable
    assert not MalformedRecordError.is_retriable


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (b"", "too short"),
        (b"\x00\x00\x00\x00", "too short"),
        (b'{"json": 1}', "Confluent framing starts with 0"),
        (struct.pack(">bI", 0, 1), "doesn't decode"),
        (struct.pack(">bI", 0, 1) + b"\xff" * 12, "doesn't decode"),
    ],
)
def test_values_without_framing_or_body_are_poison(value: bytes, message: str) -> None:
    """Each way of being torn raises MalformedRecordError and says which."""
    with pytest.raises(MalformedRecordError, match=message):
        codec.decode(value)


@by_class
@SOME
@given(data=st.data())
def test_truncated_values_are_poison(cls: type[Record], data: st.DataObject) -> None:
    """Any proper prefix of a value raises MalformedRecordError."""
    value = codec.encode(data.draw(of_record(cls))).value
    cut = data.draw(st.integers(0, len(value) - 1))
    with pytest.raises(MalformedRecordError):
        codec.decode(value[:cut])


@SOME
@given(any_record(RECORD_TYPES), st.binary(min_size=1, max_size=8))
def test_bytes_behind_the_end_are_poison(record: Record, tail: bytes) -> None:
    """A value that goes on after its record raises MalformedRecordError."""
    with pytest.raises(MalformedRecordError, match="behind its end"):
        codec.decode(codec.encode(record).value + tail)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(registry.frozen_schemas())), st.binary(max_size=60))
def test_random_bodies_decode_or_are_poison(schema_id: int, body: bytes) -> None:
    """Whatever stands behind a valid frame, nothing but MalformedRecordError comes out."""
    try:
        record = codec.decode(struct.pack(">bI", 0, schema_id) + body)
    except MalformedRecordError:
        return
    assert type(record) in RECORD_TYPES


def test_json_that_does_not_parse_is_poison() -> None:
    """A frame whose JSON field holds no JSON raises MalformedRecordError."""
    good = codec.encode(CompletionRecord(messages=["marker"])).value
    bad = good.replace(b'["marker"]', b'["marker"}')
    with pytest.raises(MalformedRecordError, match="JSON"):
        codec.decode(bad)


def test_a_trace_parses_its_messages_when_they_are_asked_for() -> None:
    """Until then they are text; afterwards, and in copies, comparisons and pickles, the same value as ever."""
    sent = Trajectory(
        traces=[Trace(index=3, messages=[{"role": "user", "content": "marker"}], tools=[{"name": "bash"}])]
    )
    value = codec.encode(sent).value

    def decoded() -> Trace:
        record = codec.decode(value)
        assert isinstance(record, Trajectory)
        return record.traces[0]

    got = decoded()
    assert "messages" not in vars(got)
    assert got.messages == sent.traces[0].messages
    assert got.messages is got.messages
    assert dataclasses.replace(decoded(), index=4).messages == got.messages
    assert pickle.loads(pickle.dumps(decoded())) == copy.deepcopy(decoded()) == decoded() == sent.traces[0]
    assert codec.encode(Trajectory(traces=[decoded()])).value == value
    with pytest.raises(AttributeError, match="'Trace' object has no attribute 'mesages'"):
        _ = got.mesages  # type: ignore[attr-defined]


def test_threads_that_look_at_once_get_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the one changes in it the other sees, as in any object."""
    record = codec.decode(codec.encode(Trajectory(traces=[Trace(messages=[{"content": "marker"}])])).value)
    assert isinstance(record, Trajectory)
    both, load = threading.Barrier(2, timeout=30.0), json_text.load

    def slow(text: str) -> Any:
        both.wait()
        return load(text)

    monkeypatch.setattr(json_text, "load", slow)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda trace: trace.messages, [record.traces[0]] * 2)
    assert first is second


def test_messages_of_a_trace_that_do_not_parse_are_poison_to_who_reads_or_repeats_them() -> None:
    """Its tokens can be read; the look at its messages raises JsonTextError, and it can't be published again."""
    good = codec.encode(Trajectory(traces=[Trace(prompt_ids=b"\1\0\0\0", messages=["marker"])])).value
    record = codec.decode(good.replace(b'["marker"]', b'["marker"}'))
    assert isinstance(record, Trajectory)
    assert record.traces[0].prompt_ids == b"\1\0\0\0"
    with pytest.raises(JsonTextError, match="doesn't parse"):
        _ = record.traces[0].messages
    with pytest.raises(MalformedRecordError, match="doesn't parse"):
        codec.encode(record)


def test_topic_key_and_headers_travel_with_the_value() -> None:
    """Lease, writer and call number stand in the headers, so that an unreadable record still counts."""
    record = CompletionRecord(session_id="s", group_id="g", lease_id="l", writer=2, call_seq=7, policy_id="p")
    encoded = codec.encode(record)
    headers = dict(encoded.headers)
    assert (encoded.topic, encoded.key) == ("capture.completions", b"s")
    assert {k: headers[k] for k in ("session_id", "group_id", "lease_id", "writer", "call_seq", "policy_id")} == {
        "session_id": b"s",
        "group_id": b"g",
        "lease_id": b"l",
        "writer": b"2",
        "call_seq": b"7",
        "policy_id": b"p",
    }
    assert headers["ce_type"] == b"io.polynya.completion_record"
    assert headers["ce_specversion"] == b"1.0"
    assert headers["ce_id"] == record.event_id.encode()


def test_the_event_id_is_the_same_whenever_the_fact_is_published() -> None:
    """Two encodings of the same fact, at other times, have one ce_id; another call has another."""
    first, again, other = (
        CompletionRecord(lease_id="l", call_seq=n, started_at=t) for n, t in ((1, 1), (1, 2), (2, 1))
    )
    assert first.event_id == again.event_id
    assert first.event_id != other.event_id


def test_a_claim_check_stands_on_the_topic_it_replaces() -> None:
    """A blob reference takes the topic and the key of its record."""
    encoded = codec.encode(BlobReference(for_topic="trajectory.scored", for_key="g", url="file:///x"))
    assert (encoded.topic, encoded.key) == ("trajectory.scored", b"g")


def test_a_reader_that_is_older_reads_a_new_symbol_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """An enum symbol of a newer writer reads as UNKNOWN, not as an error."""
    import fastavro

    old = registry.find(registry.newest("session_event").schema_id)
    newer = json.loads(json.dumps(old.schema).replace('"registered", ', '"registered", "teleported", '))
    future = registry.FrozenSchema(999, "session_event", 2, newer)
    monkeypatch.setattr(registry, "frozen_schemas", lambda: {999: future})
    out = io.BytesIO()
    body = codec._fields(SessionEvent(session_id="s", spec=SessionSpec())) | {"type": "teleported"}
    fastavro.schemaless_writer(out, fastavro.parse_schema(newer), body)
    record = codec.decode(struct.pack(">bI", 0, 999) + out.getvalue())
    codec._parsed.cache_clear()
    assert isinstance(record, SessionEvent)
    assert record.type is SessionEventType.UNKNOWN


@pytest.mark.parametrize("record", RECORD_TYPES, ids=lambda r: r.NAME)
def test_a_record_of_the_newest_schema_is_read_without_resolution(record: type[Record]) -> None:
    """Resolving a schema against itself would cost a quarter of the decoding."""
    assert codec._resolves_to(registry.newest(record.NAME).schema_id) is None
