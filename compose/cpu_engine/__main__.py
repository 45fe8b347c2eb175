"""`python -m compose.cpu_engine`."""

from __future__ import annotations

import sys

from compose.cpu_engine.server import main

if __name__ == "__main__":
    sys.exit(main())
