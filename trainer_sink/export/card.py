"""The card of a data set: README.md with the front matter that the Hugging Face hub and `load_dataset(DIR)` read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trainer_sink.export.columns import Columns
from trainer_sink.export.manifest import Manifest


def card(manifest: Manifest, columns: Columns, splits: Mapping[str, tuple[int, int]], licence: str) -> str:
    """The text of README.md; `splits` has examples and bytes by name, in order."""
    front: dict[str, Any] = {}
    if licence:
        front["license"] = licence
    front["pretty_name"] = f"Polynya {manifest.kind}"
    front["tags"] = ["agent", "tool-use", "polynya"]
    front["size_categories"] = [size_category(sum(rows for rows, _ in splits.values()))]
    front["configs"] = [
        {
            "config_name": "default",
            "data_files": [{"split": name, "path": f"data/{name}-*"} for name in splits],
        }
    ]
    front["dataset_info"] = {
        "config_name": "default",
        "features": list(columns),
        "splits": [{"name": n, "num_bytes": size, "num_examples": rows} for n, (rows, size) in splits.items()],
    }
    return "---\n" + "\n".join(_yaml(front)) + "\n---\n\n" + _body(manifest, columns, splits)


def _body(manifest: Manifest, columns: Columns, splits: Mapping[str, tuple[int, int]]) -> str:
    sessions = sum(run.counts.sessions for run in manifest.runs)
    exported = sum(run.counts.exported for run in manifest.runs)
    refused = sum(run.counts.refused_total() for run in manifest.runs)
    lines = [
        f"# Polynya {manifest.kind}",
        "",
        f"{exported} of {sessions} agent sessions; {refused} were left out, for reasons that `manifest.json` counts.",
        "",
        "| split | rows | bytes |",
        "|---|---|---|",
        *(f"| {name} | {rows} | {size} |" for name, (rows, size) in splits.items()),
        "",
        "Splits are by task: no task is in two of them. `manifest.json` names the topic and offsets that were read, the builder,",
        "the tokenizer, the filters, and the SHA-256 of each file.",
        "",
        "| column | type |",
        "|---|---|",
        *(f"| `{c['name']}` | {_type(c)} |" for c in columns),
        "",
        "```python",
        "from datasets import load_dataset  # 4.7 or newer, which knows columns of JSON",
        'data = load_dataset("this directory")',
        "```",
        "",
    ]
    return "\n".join(lines)


def _type(column: Mapping[str, Any]) -> str:
    if "list" in column:
        return f"list of {column['list']}" if isinstance(column["list"], str) else "list of objects"
    return str(column.get("dtype", "object"))


def size_category(rows: int) -> str:
    """The hub's name for a number of rows."""
    for bound, name in ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M")):
        if rows < bound:
            return name
    return "n>1M"


def _yaml(value: Mapping[str, Any], indent: str = "") -> list[str]:
    """Block style; scalars in JSON's spelling, which YAML reads."""
    lines: list[str] = []
    for key, inner in value.items():
        if isinstance(inner, Mapping):
            lines += [f"{indent}{key}:", *_yaml(inner, indent + "  ")]
        elif isinstance(inner, Sequence) and not isinstance(inner, str):
            lines += [f"{indent}{key}:", *_items(inner, indent)]
        else:
            lines.append(f"{indent}{key}: {json.dumps(inner, ensure_ascii=False)}")
    return lines


def _items(values: Sequence[Any], indent: str) -> list[str]:
    lines: list[str] = []
    for value in values:
        if isinstance(value, Mapping):
            first, *rest = _yaml(value, indent + "  ")
            lines += [f"{indent}- {first.lstrip()}", *rest]
        else:
            lines.append(f"{indent}- {json.dumps(value, ensure_ascii=False)}")
    return lines
