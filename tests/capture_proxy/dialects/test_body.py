"""Request bodies as they really come."""

from __future__ import annotations

import pytest

from capture_proxy.dialects.body import Notes, dump_arguments, parse_body, want_count, want_strings
from capture_proxy.reply import ProxyError


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"null", b'{"a":NaN}', b'{"a":"\xff"}', b"[" * 100_000])
def test_anything_but_an_object_is_a_bad_request(body: bytes) -> None:
    """Malformed JSON, other types, invalid UTF-8 and absurd nesting are the client's fault, said so."""
    with pytest.raises(ProxyError) as raised:
        parse_body(body, Notes())
    assert raised.value.kind == "bad_request"
    assert raised.value.status == 400


def test_lone_surrogates_are_replaced_and_counted() -> None:
    """A string cut inside an emoji doesn't break the session: U+FFFD, in keys too; whole pairs stay."""
    notes = Notes()
    body = parse_body(b'{"\\ud83d k":"ok \\ud83d end \\udc00 \\ud83e\\udd8a"}', notes)
    assert body == {"\ufffd k": "ok \ufffd end \ufffd \U0001f98a"}
    assert notes.sorted() == ("repaired: lone surrogate",)


def test_nul_and_control_characters_pass() -> None:
    """Tool output with NUL and escapes reaches the model as it is."""
    notes = Notes()
    assert parse_body(b'{"a":"a\\u0000b\\u0001\\u001b[0m"}', notes) == {"a": "a\0b\1\x1b[0m"}
    assert notes.sorted() == ()


def test_big_integers_survive() -> None:
    """Arguments beyond 64 bits keep their digits."""
    body = parse_body(b'{"n":123456789012345678901234567890,"s":"\\ud800"}', Notes())
    assert dump_arguments({"n": body["n"], "u": "\u00fc"}) == '{"n":123456789012345678901234567890,"u":"\u00fc"}'


@pytest.mark.parametrize("value", [0, -1, 1.5, "8", True])
def test_counts_are_checked(value: object) -> None:
    """A count that isn't one names its field."""
    with pytest.raises(ProxyError) as raised:
        want_count({"max_tokens": value}, "max_tokens")
    assert raised.value.param == "max_tokens"


def test_strings() -> None:
    """A stop may be one string or several; empty ones are dropped."""
    assert want_strings("a", "stop") == ["a"]
    assert want_strings(["a", ""], "stop") == ["a"]
    assert want_strings(None, "stop") == []
    with pytest.raises(ProxyError):
        want_strings([1], "stop")
