"""Where the API listens."""

from __future__ import annotations

import socket

import pytest

from compose.api.service import listen, url_of
from tests.compose.api.conftest import settings


def test_a_restarted_api_has_its_address_again(tmp_path) -> None:
    """A port that was chosen free is remembered; another one is taken when somebody has it, or when the note is no port."""
    chosen = settings(port_file=tmp_path / "run" / "api.port")
    with listen(chosen) as first:
        url = url_of(chosen, first)
        first.listen()
        with listen(chosen) as other:
            assert url_of(chosen, other) != url
            port = other.getsockname()[1]
    with listen(chosen) as again:
        assert again.getsockname()[1] == port
    for note in ("", "no port", "99999999"):
        (tmp_path / "run" / "api.port").write_text(note)
        with listen(chosen) as some:
            assert some.getsockname()[1] > 0


def test_a_port_that_is_set_is_taken_or_nothing() -> None:
    """No other address than the one that was asked for."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match=r"[Aa]ddress"):
            listen(settings(port=taken.getsockname()[1]))
