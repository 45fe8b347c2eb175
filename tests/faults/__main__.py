"""`python -m tests.faults [HARNESS …] [--fault NAME …]`: all of it writes the page; a part of it only prints."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tests.faults.faults import BY_NAME, FAULTS
from tests.faults.findings import finding
from tests.faults.page import PATH, write_page
from tests.faults.trials import CLIS, LIMIT_S, run_trials


def main() -> None:
    """Runs the trials that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("harness", nargs="*", choices=[*CLIS, []], help="all of them by default")
    parser.add_argument("--fault", action="append", choices=BY_NAME, help="all of them by default")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="of each session")
    asked = parser.parse_args()
    names = asked.harness or CLIS
    faults = [BY_NAME[name] for name in asked.fault] if asked.fault else FAULTS
    trials = asyncio.run(run_trials(names, faults, limit_s=asked.limit_s, report=print))
    page = write_page({pair: finding(trial) for pair, trial in trials.items()})
    if asked.harness or asked.fault:
        for trial in trials.values():
            print(trial.report())
        sys.stdout.write(page)
    else:
        PATH.write_text(page, encoding="utf-8")
        print(f"{PATH}: written")


if __name__ == "__main__":
    main()
