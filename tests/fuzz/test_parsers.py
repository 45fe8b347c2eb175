"""Random bodies straight into the parsers: whatever comes, a request or a ProxyError; far quicker than over sockets."""

from __future__ import annotations

import random

import pytest

from capture_proxy.dialects import DIALECTS, detect
from capture_proxy.reply import ProxyError
from tests.capture_proxy.wire import WIRES, Wire
from tests.fuzz.bodies import body_bytes
from tests.fuzz.seed import the_seed


def parse(seed: int, wire: Wire, count: int) -> int:
    """Parses `count` random bodies of a dialect; how many of them were sound."""
    rng, dialect, sound = random.Random(f"{seed} {wire.name}"), DIALECTS[wire.name], 0
    for number in range(count):
        route = detect("POST", rng.choice((wire.path, wire.stream_path)), {})
        assert route is not None
        body = body_bytes(rng, wire)
        for read in (dialect.parse_request, dialect.parse_count):
            try:
                request = read(route.path, {}, body)
            except ProxyError as error:
                _, _, told = dialect.encode_error(error)
                told.decode()
            except Exception as error:
                raise AssertionError(f"POLYNYA_FUZZ_SEED={seed}, body {number}: {body[:2000]!r}") from error
            else:
                sound += 1
                assert all(isinstance(message, dict) for message in request.messages)
    return sound


@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_a_parser_takes_or_refuses(wire: Wire) -> None:
    """A thousand bodies of each dialect; about half of them are sound."""
    assert parse(the_seed(), wire, 1_000) > 500


@pytest.mark.deep
@pytest.mark.parametrize("wire", WIRES, ids=lambda wire: wire.name)
def test_a_parser_takes_or_refuses_a_great_many(wire: Wire) -> None:
    """Forty thousand of each."""
    assert parse(the_seed(), wire, 40_000) > 20_000
