"""The page about evaluators names what there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stage_workers import evaluators
from stage_workers.evaluators import EvaluatorError
from stage_workers.evaluators.log_parsers import PARSERS
from stage_workers.evaluators.swebench import Report

PAGE = (Path(__file__).parents[3] / "docs" / "evaluators.md").read_text()
OURS = ("session_completed", "command", "test_on_output", "swebench", "harbor", "trajectory")


@pytest.mark.parametrize("name", OURS)
def test_every_option_is_documented(name: str) -> None:
    """An evaluator and each option that it knows, by its own words."""
    with pytest.raises(EvaluatorError) as caught:
        evaluators.validate(name, {"no such option": 1})
    known = re.search(r"it knows: (.+)$", str(caught.value))
    assert known is not None
    assert f"`{name}`" in PAGE
    assert [option for option in known[1].split(", ") if f"`{option}`" not in PAGE] == []


def test_every_parser_and_flag_is_documented() -> None:
    """Names that stand in task files and in rewards."""
    flags = [*Report().as_details(brief=True)]
    assert [name for name in [*PARSERS, *flags] if f"`{name}`" not in PAGE] == []
