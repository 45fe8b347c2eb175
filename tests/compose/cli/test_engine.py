"""`polynya engine` as a person types it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from compose.cli import main
from compose.errors import CommandError, ExitCode


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["engine", "add", "http://e:1", "--kind", "sglangg"], "--kind sglang"),
        (["up", "--engine", "http://e:1", "--engine-kind", "sglangg"], "--engine-kind sglang"),
    ],
)
def test_an_unknown_kind_names_the_option_that_was_typed(arguments: list[str], hint: str) -> None:
    """The two commands have different names for it; neither starts or registers anything."""
    error = CliRunner().invoke(main.app, arguments).exception
    assert isinstance(error, CommandError)
    assert error.code is ExitCode.USAGE
    assert "'sglangg' is none of sglang" in str(error)
    assert error.hint == hint
