"""`polynya ca export`."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
from typer.testing import CliRunner

from compose.cli.main import app


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory whose authority is made once."""
    return tmp_path_factory.mktemp("state")


def exported(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["ca", "export", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_certificate_goes_to_standard_output_or_a_file(state_dir: Path, tmp_path: Path) -> None:
    """One authority per state directory, the same each time; a certificate, never the key."""
    pem = exported("--state-dir", str(state_dir))
    exported(str(tmp_path / "ca.pem"), "--state-dir", str(state_dir))
    assert (tmp_path / "ca.pem").read_text() == pem
    assert pem.count("BEGIN CERTIFICATE") == 1
    assert "PRIVATE KEY" not in pem
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=pem)
    assert dict(part[0] for part in context.get_ca_certs()[0]["subject"])["commonName"] == "Polynya capture proxy"


def test_the_bundle_holds_what_the_machine_trusts_too(state_dir: Path) -> None:
    """For clients that take one file for all: without the rest they would trust no mirror."""
    pem = exported("--state-dir", str(state_dir))
    bundle = exported("--bundle", "--state-dir", str(state_dir))
    assert bundle.endswith(pem)
    assert bundle.count("BEGIN CERTIFICATE") > 50


def test_a_place_that_cant_be_written_is_a_usage_error(state_dir: Path, tmp_path: Path) -> None:
    """It says which."""
    done = CliRunner().invoke(app, ["ca", "export", str(tmp_path / "no" / "ca.pem"), "--state-dir", str(state_dir)])
    assert done.exit_code != 0
    assert "can't be written" in str(done.exception)
