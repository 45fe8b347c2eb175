"""Settings: flags over environment over file over defaults; the admin key."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from pydantic import ValidationError

from compose.settings import StackSettings, admin_key, load


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("POLYNYA_BOOTSTRAP", "POLYNYA_ENGINE", "POLYNYA_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_a_flag_beats_the_environment_which_beats_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each source overrides the ones after it."""
    (tmp_path / "polynya.toml").write_text('engine = "http://file"\npolicy_id = "from-file"\nrun_slots = 7\n')
    monkeypatch.setenv("POLYNYA_ENGINE", "http://env")
    monkeypatch.setenv("POLYNYA_RUN_SLOTS", "9")
    settings = load(engine="cpu")
    assert (settings.engine, settings.run_slots, settings.policy_id) == ("cpu", 9, "from-file")


def test_an_unknown_key_in_the_file_is_refused(tmp_path: Path) -> None:
    """A misspelt setting is an error, not a silent default."""
    (tmp_path / "polynya.toml").write_text("run_slot = 7\n")
    with pytest.raises(ValidationError, match="run_slot"):
        load()


def test_a_child_builds_the_same_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """`as_env` carries every setting to a child process."""
    settings = load(engine="scripted:a:b", topic_prefix="x.", run_slots=3, admin_key="k")
    for name, value in settings.as_env().items():
        monkeypatch.setenv(name, value)
    assert StackSettings() == settings


def test_the_admin_key_is_made_once_and_private(tmp_path: Path) -> None:
    """The key stays the same and only its owner can read it."""
    settings = load(state_dir=tmp_path / "state")
    key = admin_key(settings).get_secret_value()
    assert admin_key(settings).get_secret_value() == key
    assert len(key) >= 32
    assert stat.S_IMODE((tmp_path / "state" / "admin.key").stat().st_mode) == 0o600


def test_a_machines_proxies_have_names_of_their_own_and_one_spool(tmp_path: Path) -> None:
    """Without more, one proxy per machine and state directory; several are told their names and what they share."""
    alone = load(state_dir=tmp_path / "state")
    assert alone.proxy_name.startswith("proxy-")
    assert alone.spools == tmp_path / "state" / "spool"
    second = load(state_dir=tmp_path / "two", proxy_id="proxy-2", spool_dir=tmp_path / "spool")
    assert (second.proxy_name, second.spools) == ("proxy-2", tmp_path / "spool")
