"""The certificate authority of the forward listener: made once per state directory, its key readable by its owner alone."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from typing import Final

from mitmproxy.certs import CertStore

_BASENAME: Final = "mitmproxy"  # mitmproxy looks for its files under this name
_KEY_BITS: Final = 2048  # also the size of the hosts' certificates, which every new connection pays for


def ensure_authority(directory: Path) -> str:
    """The authority's certificate in PEM, made now if need be; processes that start at once agree on one. Raises OSError."""
    certificate = directory / f"{_BASENAME}-ca-cert.pem"
    if not certificate.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        with (directory.parent / f".{directory.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not certificate.exists():
                _make(directory)
    return certificate.read_text(encoding="ascii")


def _make(directory: Path) -> None:
    half = directory.with_name(f".{directory.name}.{os.getpid()}")
    shutil.rmtree(half, ignore_errors=True)
    CertStore.create_store(half, _BASENAME, _KEY_BITS, organization="Polynya", cn="Polynya capture proxy")
    half.chmod(0o700)
    shutil.rmtree(directory, ignore_errors=True)  # without a certificate in it, it is of no use
    half.replace(directory)
