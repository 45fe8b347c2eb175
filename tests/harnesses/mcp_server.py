"""A smallest MCP server for tests: standard input and output, one tool that never gets called."""

from __future__ import annotations

import json
import sys
from typing import Any

TOOL = "tide_table"


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The result of one request."""
    if method == "initialize":
        version = params.get("protocolVersion", "2025-06-18")
        return {
            "protocolVersion": version,
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "tests", "version": "1"},
        }
    if method == "tools/list":
        schema = {"type": "object", "properties": {"harbour": {"type": "string"}}, "required": ["harbour"]}
        return {"tools": [{"name": TOOL, "description": "When the water is high.", "inputSchema": schema}]}
    return {}


def main() -> None:
    """Answers until the client goes."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message and "method" in message:
            result = answer(message["method"], message.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)


if __name__ == "__main__":
    main()
