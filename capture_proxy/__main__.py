"""`python -m capture_proxy --settings-json FILE`: one proxy process."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from pydantic import ValidationError

from capture_proxy.service import run
from capture_proxy.settings import ProxySettings


def main(argv: list[str] | None = None) -> int:
    """Runs a proxy until it is told to stop; 2 for settings that don't fit."""
    parser = argparse.ArgumentParser(prog="capture_proxy", description="Runs one capture proxy.")
    parser.add_argument("--settings-json", type=Path, required=True, metavar="FILE", help="the ProxySettings as JSON")
    arguments = parser.parse_args(argv)
    try:
        settings = ProxySettings.model_validate_json(arguments.settings_json.read_bytes())
    except (OSError, ValidationError) as exc:
        sys.stderr.write(f"can't read the settings in {arguments.settings_json}: {exc}\n")
        return 2
    asyncio.run(run(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
