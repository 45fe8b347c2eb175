"""The command `python -m capture_proxy`."""

from __future__ import annotations

from pathlib import Path

import pytest

from capture_proxy.__main__ import main


def test_settings_that_dont_fit_are_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2 with the field's path; the values, among them a key, aren't repeated."""
    file = tmp_path / "settings.json"
    file.write_text('{"spool_dir": "s", "model_dir": "m", "admin_key": "hush-hush", "port": "hush", "surprise": 1}')
    assert main(["--settings-json", str(file)]) == 2
    said = capsys.readouterr().err
    assert "port" in said
    assert "surprise" in said
    assert "hush" not in said


def test_a_missing_file_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, naming the file."""
    assert main(["--settings-json", str(tmp_path / "nowhere.json")]) == 2
    assert "nowhere.json" in capsys.readouterr().err


def test_an_empty_admin_key_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a key anybody could open leases."""
    file = tmp_path / "settings.json"
    file.write_text('{"spool_dir": "s", "model_dir": "m", "admin_key": ""}')
    assert main(["--settings-json", str(file)]) == 2
    assert "POLYNYA_ADMIN_KEY" in capsys.readouterr().err
