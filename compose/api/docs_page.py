"""The OpenAPI document as one page of HTML: no script, nothing from elsewhere, so that it also works without a network."""

from __future__ import annotations

import json
from html import escape
from typing import Any

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:62rem;padding:0 1rem;color:#1c2733}
h2{margin-top:2.5rem;border-bottom:1px solid #d5dde5}summary{cursor:pointer;padding:.4rem 0}
code,pre{font-family:ui-monospace,monospace;font-size:13px}pre{background:#f4f7fa;padding:.8rem;overflow:auto}
.m{display:inline-block;min-width:3.6rem;font-weight:600}.get{color:#0a6b3b}.post{color:#8a4b00}.delete{color:#a01414}
table{border-collapse:collapse}td,th{text-align:left;padding:.15rem .9rem .15rem 0;vertical-align:top}
"""


def page(document: dict[str, Any]) -> str:
    """The whole page."""
    info = document["info"]
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault((operation.get("tags") or ["other"])[0], []).append(_operation(method, path, operation))
    parts = [f"<h2>{escape(tag)}</h2>" + "".join(found) for tag, found in by_tag.items()]
    shapes = "".join(
        f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{_json(shape)}</details>'
        for name, shape in sorted(document["components"]["schemas"].items())
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])} API</title>'
        f"<style>{_STYLE}</style><h1>{escape(info['title'])} API {escape(info['version'])}</h1>"
        f'<p>{escape(info.get("description", ""))}</p><p><a href="/openapi.json">openapi.json</a></p>'
        f"{''.join(parts)}<h2>Shapes</h2>{shapes}</html>"
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td><code>{escape(p['name'])}</code><td>{escape(p['in'])}<td>{escape(_kind(p['schema']))}"
        f"<td>{escape(p.get('description', ''))}"
        for p in operation.get("parameters", [])
    )
    takes = "".join(
        f"<p>takes <code>{escape(kind)}</code>: {_kind_link(body['schema'])}"
        for kind, body in operation.get("requestBody", {}).get("content", {}).items()
    )
    answers = "".join(
        f"<tr><td>{escape(str(status))}<td>{_shape_of(response)}<td>{escape(response.get('description', ''))}"
        for status, response in sorted(operation["responses"].items(), key=lambda item: str(item[0]))
    )
    return (
        f'<details><summary><span class="m {method}">{method.upper()}</span><code>{escape(path)}</code> '
        f"{escape(operation.get('summary', ''))}</summary><p>{escape(operation.get('description', ''))}</p>"
        f"{f'<table>{rows}</table>' if rows else ''}{takes}<table>{answers}</table></details>"
    )


def _shape_of(response: dict[str, Any]) -> str:
    return ", ".join(_kind_link(body.get("schema", {})) for body in response.get("content", {}).values())


def _kind_link(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if schema.get("type") == "array":
        return f"list of {_kind_link(schema.get('items', {}))}"
    return escape(_kind(schema))


def _kind(schema: dict[str, Any]) -> str:
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    options = schema.get("anyOf") or schema.get("allOf") or []
    if options:
        return " | ".join(_kind(option) for option in options)
    return str(schema.get("$ref", schema.get("type", "any"))).rpartition("/")[2]


def _json(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=1, ensure_ascii=False))}</pre>"
