"""Keeping a program's output within bounds."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stage_workers.output import BoundedLog, HeadAndTail, Lines

PIECES = st.lists(st.binary(max_size=30), max_size=20)


@given(pieces=PIECES, limit=st.integers(2, 60))
def test_head_and_tail(pieces: list[bytes], limit: int) -> None:
    """Whatever the pieces: within the limit everything is kept, beyond it the first and last halves, with the count between."""
    kept = HeadAndTail(limit)
    for piece in pieces:
        kept.feed(piece)
    whole = b"".join(pieces)
    if len(whole) <= limit:
        assert kept.value == whole
        return
    head, tail = limit // 2, limit - limit // 2
    note = b"\n[... %d bytes left out ...]\n" % (len(whole) - limit)
    assert kept.value == whole[:head] + note + whole[-tail:]


@given(pieces=PIECES)
def test_lines_are_cut_anywhere(pieces: list[bytes]) -> None:
    """Lines come out whole, however the stream was cut; the last one needs no newline."""
    taken: list[bytes] = []
    lines = Lines(taken.append)
    for piece in pieces:
        lines.feed(piece)
    lines.close()
    whole = b"".join(pieces)
    expected = whole.split(b"\n")
    assert taken == (expected[:-1] if not expected[-1] else expected)


def test_endless_line_is_passed_over() -> None:
    """A line beyond the limit doesn't fill the memory, and the next one is read again."""
    taken: list[bytes] = []
    lines = Lines(taken.append, limit=10)
    for piece in (b"short\n", b"x" * 8, b"x" * 8, b"x\nafter\n"):
        lines.feed(piece)
    lines.close()
    assert taken == [b"short", b"after"]


def test_bounded_log(tmp_path: Path) -> None:
    """The head is on disk at once, the tail when the log is closed."""
    log = BoundedLog(tmp_path / "deep" / "x.log", 10)
    log.feed(b"0123456789abcdefghij")
    assert (tmp_path / "deep" / "x.log").read_bytes() == b"01234"
    log.close()
    log.close()
    assert (tmp_path / "deep" / "x.log").read_bytes() == b"01234\n[... 10 bytes left out ...]\nfghij"
