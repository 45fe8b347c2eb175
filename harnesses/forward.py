"""Launching a harness with its vendor's own address: a forward proxy in its environment, our CA in every place that a client reads."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

# What stands for an API key at a vendor's own address: clients insist on one, and the proxy's credentials name the session.
NO_KEY = "polynya"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardProxy:
    """A forward listener of a capture proxy: `host:port`, its CA's certificate, and the certificates that a machine trusts anyway (PEM)."""

    address: str
    ca_pem: bytes
    system_pem: bytes = b""

    @classmethod
    def announced(cls, details: Mapping[str, object]) -> Self | None:
        """The forward listener in the details of a proxy's heartbeat, with this machine's own certificates; None where there is none."""
        forward = details.get("forward")
        if not isinstance(forward, Mapping) or not forward.get("address"):
            return None
        return cls(
            address=str(forward["address"]), ca_pem=str(forward.get("ca_pem", "")).encode(), system_pem=_trusted_here()
        )

    def environment(self, secret: str, home: str) -> dict[str, str]:
        """The variables that send a client through the proxy, as the session that `secret` opens.

        Node reads its own variable for *additional* certificates, everything else takes one bundle that must hold all of them.
        """
        host = self.address.removeprefix("http://").rstrip("/")
        proxy = f"http://{quote(secret, safe='')}:x@{host}"
        ca, bundle = f"{_directory(home)}/ca.pem", f"{_directory(home)}/bundle.pem"
        return {
            "HTTPS_PROXY": proxy,
            "https_proxy": proxy,
            # What a tool or an MCP server serves on this machine is no vendor's.
            "NO_PROXY": "localhost,127.0.0.1",
            "no_proxy": "localhost,127.0.0.1",
            "NODE_EXTRA_CA_CERTS": ca,
            "CODEX_CA_CERTIFICATE": ca,
            "SSL_CERT_FILE": bundle,
            "REQUESTS_CA_BUNDLE": bundle,
        }

    def files(self, home: str) -> dict[str, bytes]:
        """The certificates that the variables name."""
        directory = _directory(home)
        return {
            f"{directory}/ca.pem": self.ca_pem,
            f"{directory}/bundle.pem": self.system_pem.rstrip(b"\n") + b"\n" + self.ca_pem,
        }


def _trusted_here() -> bytes:
    """The certificates that this machine trusts, or nothing where they can't be found: then only the vendors' hosts work."""
    file = ssl.get_default_verify_paths().cafile
    try:
        return Path(file).read_bytes() if file else b""
    except OSError:
        return b""


def _directory(home: str) -> str:
    return f"{home}/.polynya"
