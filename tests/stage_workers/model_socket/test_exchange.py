"""What of a connection may be sent to another proxy, and what not."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stage_workers.model_socket.exchange import Budget, Exchange, State

BODY = b'{"messages": []}'
REQUEST = b"POST /v1/chat HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED_REQUEST = b"POST /v1 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\ndata: \r\n3\r\n1\n\n\r\n0\r\n\r\n"


def exchange(limit: int = 1 << 20, budget: Budget | None = None) -> Exchange:
    return Exchange(limit, budget or Budget(1 << 20))


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(places)]


@given(
    cuts=st.lists(st.integers(0, 10_000), max_size=12),
    answers=st.lists(st.sampled_from([ANSWER, STREAM, b"HTTP/1.1 204 No Content\r\n\r\n"]), min_size=1, max_size=4),
    request_bytes=st.sampled_from([REQUEST, CHUNKED_REQUEST, b"GET /v1/models HTTP/1.1\r\n\r\n"]),
)
def test_requests_and_answers_in_any_pieces(cuts: list[int], answers: list[bytes], request_bytes: bytes) -> None:
    """However the bytes are cut: a request is kept whole until its answer begins, and the connection is idle after each answer."""
    budget = Budget(1 << 20)
    found = exchange(budget=budget)
    for number, answer in enumerate(answers, 1):
        for piece in pieces(request_bytes, cuts):
            found.asked(piece)
        assert found.state is State.PENDING
        kept = found.pending
        assert kept is not None
        assert b"".join(kept) == request_bytes
        for piece in pieces(answer, cuts):
            found.answer(piece)
            assert found.pending is None
        assert found.state is State.IDLE
        assert found.answered == number
    assert budget.take(1 << 20)  # nothing is kept any more


def test_interim_answers_are_none() -> None:
    """`100 Continue` is no answer: the request, whose body follows, can still be sent elsewhere."""
    found = exchange()
    head, body = REQUEST[: -len(BODY)], REQUEST[-len(BODY) :]
    found.asked(head)
    found.answer(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert found.pending == [head]
    found.asked(body)
    assert found.pending == [head, body]
    found.answer(b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER)
    assert (found.state, found.pending) == (State.IDLE, None)


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (b"CONNECT api.x:443 HTTP/1.1\r\n\r\n", b"HTTP/1.1 200 Connection established\r\n\r\n"),
        (b"GET /ws HTTP/1.1\r\nUpgrade: websocket\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"),
    ],
    ids=["tunnel", "websocket", "http2"],
)
def test_what_is_no_exchange_is_never_sent_again(asked: bytes, answered: bytes) -> None:
    """Tunnels, web sockets and other protocols are relayed blindly, and end with their proxy."""
    found = exchange()
    found.asked(asked)
    found.answer(answered)
    assert found.state is State.OPAQUE
    found.asked(REQUEST)
    assert found.pending is None


def test_a_refused_tunnel_stays_an_exchange() -> None:
    """The proxy's answer to a CONNECT that it refuses is an answer like any other."""
    found = exchange()
    found.asked(b"CONNECT api.x:443 HTTP/1.1\r\n\r\n")
    found.answer(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno")
    assert found.state is State.IDLE


def test_an_answer_without_a_body_to_a_head_request() -> None:
    """The length in an answer to HEAD is of what isn't sent."""
    found = exchange()
    found.asked(b"HEAD /v1 HTTP/1.1\r\n\r\n")
    found.answer(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n")
    assert found.state is State.IDLE


@pytest.mark.parametrize(
    "events",
    [
        [("asked", REQUEST + REQUEST)],
        [("asked", REQUEST), ("asked", REQUEST)],
        [("answer", ANSWER)],
        [("asked", REQUEST), ("answer", ANSWER + b"more")],
        [("asked", REQUEST), ("answer", ANSWER), ("answer", ANSWER)],
        [("asked", REQUEST[:20]), ("answer", ANSWER)],
        [("asked", REQUEST[:-3]), ("answer", ANSWER)],
        [("asked", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00")],
        [("asked", REQUEST), ("answer", b"SSH-2.0-OpenSSH_9.2p1\r\n\r\n")],
        [("asked", b"POST / HTTP/1.1\r\nx: " + b"y" * 300_000)],
    ],
)
def test_the_unexpected_is_relayed_and_no_more(events: list[tuple[str, bytes]]) -> None:
    """Requests in line, answers unasked for, early ones, other protocols: nothing of these may be sent twice."""
    found = exchange()
    for what, data in events:
        getattr(found, what)(data)
    assert (found.state, found.pending) == (State.OPAQUE, None)


def test_bounds() -> None:
    """A request above the limit, or above what all connections may keep, goes on but can't be sent again."""
    found = exchange(limit=len(REQUEST) - 1)
    found.asked(REQUEST)
    assert (found.state, found.pending) == (State.PENDING, None)
    found.answer(ANSWER)
    assert found.state is State.IDLE
    budget = Budget(len(REQUEST) + 5)
    one, two = exchange(budget=budget), exchange(budget=budget)
    one.asked(REQUEST)
    two.asked(REQUEST)
    assert one.pending is not None
    assert two.pending is None
    one.close()
    two.answer(ANSWER)
    two.asked(REQUEST)
    assert two.pending is not None
