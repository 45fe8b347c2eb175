"""`polynya api`: the key and the document of the HTTP API."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from compose.cli.console import out, print_json
from compose.errors import usage
from compose.runtime_info import running_info
from compose.settings import api_key, callback_key, load

app = typer.Typer(help="The HTTP API: `polynya up --api`, or `polynya run api`.", no_args_is_help=True)


@app.command("openapi")
def openapi() -> None:
    """Print the API's OpenAPI document."""
    from compose.api.service import document

    sys.stdout.write(document() + "\n")


@app.command("key")
def key(*, callbacks: bool = typer.Option(default=False, help="the key that signs callbacks instead")) -> None:
    """Print the key that callers send; it is made at the first start and kept in the state directory."""
    settings = load()
    sys.stdout.write((callback_key if callbacks else api_key)(settings).get_secret_value() + "\n")


@app.command("url")
def url(*, as_json: Annotated[bool, typer.Option("--json", help="one JSON document on stdout")] = False) -> None:
    """Print where the running stack's API is."""
    info = running_info(load())
    if info is None or not info.api_url:
        raise usage("no API runs in this state directory", hint="polynya up --api, or polynya run api")
    if as_json:
        print_json({"url": info.api_url})
    else:
        out.print(info.api_url, markup=False)
