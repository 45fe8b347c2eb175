"""Tasks of other people: rows of benchmarks and task folders become task files that `polynya submit` accepts."""

from __future__ import annotations

from compose.tasks.formats import FORMATS, import_tasks
from compose.tasks.options import ImportOptions

__all__ = ["FORMATS", "ImportOptions", "import_tasks"]
