"""`python -m compose.demo.warm_start --out DIR [--seed N]`: makes the demo's checkpoint anew."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import orjson

from compose.demo.warm_start import card
from compose.demo.warm_start.train import Recipe, warm_start
from compose.demo.warm_start.wire import capture
from trainer_sink.policies.digest import digest_of


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def main() -> int:
    """Captures, trains, writes; what came of it goes to standard output as JSON."""
    parser = argparse.ArgumentParser(prog="python -m compose.demo.warm_start", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the checkpoint's directory; made where it isn't there")
    parser.add_argument("--seed", type=int, default=Recipe().seed)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    wire = asyncio.run(capture(_say))
    recipe = Recipe(seed=chosen.seed)
    result = warm_start(wire, chosen.out, recipe, _say)
    page = card.card(result, recipe.lessons, recipe.seed, digest_of(chosen.out))
    (chosen.out / card.NAME).write_text(page)
    sys.stdout.buffer.write(orjson.dumps(result, option=orjson.OPT_INDENT_2) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
