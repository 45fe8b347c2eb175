"""`python -m capture_proxy --settings-json FILE`: one proxy process."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

import structlog
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
    except OSError as exc:
        return _usage(f"can't read {arguments.settings_json}: {exc.strerror}")
    except ValidationError as exc:
        # Without the values: one of the fields is a key.
        problems = (
            f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in exc.errors(include_input=False)
        )
        return _usage(f"{arguments.settings_json} doesn't fit: {'; '.join(problems)}")
    configure_logging()
    asyncio.run(run(settings))
    return 0


def configure_logging() -> None:
    """JSON lines on stderr. Tracebacks come without local variables, since these hold prompts and keys."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)


def _usage(message: str) -> int:
    sys.stderr.write(f"capture_proxy: {message}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
