"""`polynya ca`: the certificate authority that clients of the forward proxy must trust."""

from __future__ import annotations

import ssl
import sys
from pathlib import Path
from typing import Annotated

import typer

from compose.cli.console import out
from compose.errors import usage
from compose.settings import authority_dir, load

app = typer.Typer(help="The forward proxy's certificate authority.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """The forward proxy's certificate authority."""


@app.command("export")
def export(
    path: Annotated[Path | None, typer.Argument(help="the file to write; standard output by default")] = None,
    *,
    bundle: Annotated[
        bool, typer.Option("--bundle", help="with the certificates that this machine trusts anyway")
    ] = False,
    state_dir: Annotated[Path | None, typer.Option(help="the stack's state directory")] = None,
) -> None:
    """Write the authority's certificate (PEM): for NODE_EXTRA_CA_CERTS alone, as --bundle for SSL_CERT_FILE and the like."""
    from capture_proxy.authority import ensure_authority

    pem = ensure_authority(authority_dir(load(state_dir=state_dir))).encode()
    if bundle:
        pem = _system_certificates().rstrip(b"\n") + b"\n" + pem
    if path is None:
        sys.stdout.buffer.write(pem)
        return
    try:
        path.write_bytes(pem)
    except OSError as error:
        raise usage(f"{path} can't be written: {error.strerror}", hint="polynya ca export FILE") from error
    out.print(f"wrote {path}", markup=False)


def _system_certificates() -> bytes:
    """The machine's own bundle in PEM."""
    paths = ssl.get_default_verify_paths()
    for place in (paths.cafile, paths.openssl_cafile, "/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/cert.pem"):
        if place and Path(place).is_file():
            return Path(place).read_bytes()
    raise usage("this machine's own certificates can't be found", hint="polynya ca export FILE, and add them yourself")
