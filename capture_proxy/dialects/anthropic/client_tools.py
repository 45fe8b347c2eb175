"""The vendor's own tools that a client runs itself: its models know them by heart, ours must be told what they take.

Names and parameters are those that clients' executors read; the words are ours. Versions of one tool differ in details that no
executor misses (an older one simply never gets a newer command).
"""

from __future__ import annotations

from typing import Any

from capture_proxy.reply import Json

_TEXT = {"type": "string"}
_NUMBER = {"type": "integer"}
_POINT = {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}


def _schema(required: list[str], **properties: Json) -> dict[str, Json]:
    return {"type": "object", "properties": properties, "required": required}


_BASH = _schema(
    [],
    command={**_TEXT, "description": "The command to run."},
    restart={"type": "boolean", "description": "Starts the shell anew instead."},
)

_EDITOR = _schema(
    ["command", "path"],
    command={**_TEXT, "enum": ["view", "create", "str_replace", "insert", "undo_edit"]},
    path={**_TEXT, "description": "Absolute path of a file or folder."},
    file_text={**_TEXT, "description": "The new file's content, for create."},
    old_str={**_TEXT, "description": "The text to replace, which must occur exactly once."},
    new_str={**_TEXT, "description": "The text in its place, for str_replace and insert."},
    insert_line={**_NUMBER, "description": "The line after which to insert; 0 is the beginning."},
    insert_text={**_TEXT, "description": "The text to insert."},
    view_range={**_POINT, "description": "First and last line to view, from 1; -1 is the last line."},
)

_MEMORY = _schema(
    ["command"],
    command={**_TEXT, "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
    path={**_TEXT, "description": "A path under /memories."},
    file_text=_TEXT,
    old_str=_TEXT,
    new_str=_TEXT,
    insert_line=_NUMBER,
    insert_text=_TEXT,
    view_range=_POINT,
    old_path=_TEXT,
    new_path=_TEXT,
)

_COMPUTER = _schema(
    ["action"],
    action={
        **_TEXT,
        "enum": [
            "screenshot", "left_click", "right_click", "middle_click", "double_click", "triple_click", "left_click_drag",
            "left_mouse_down", "left_mouse_up", "mouse_move", "cursor_position", "scroll", "type", "key", "hold_key", "wait", "zoom",
        ],
    },
    coordinate={**_POINT, "description": "x and y in pixels."},
    start_coordinate=_POINT,
    region={"type": "array", "items": _NUMBER, "minItems": 4, "maxItems": 4},
    text={**_TEXT, "description": "The text to type, or the keys to press."},
    scroll_direction={**_TEXT, "enum": ["up", "down", "left", "right"]},
    scroll_amount=_NUMBER,
    duration={"type": "number", "description": "Seconds."},
)  # fmt: skip

_TOOLS: dict[str, tuple[str, str, dict[str, Json]]] = {
    "bash_": ("bash", "Runs a command in a shell that keeps its state between calls.", _BASH),
    "text_editor_": ("str_replace_based_edit_tool", "Views, creates and edits text files.", _EDITOR),
    "memory_": ("memory", "Keeps notes in files that outlast this conversation.", _MEMORY),
    "computer_": ("computer", "Sees a screen and works its mouse and keyboard.", _COMPUTER),
}
"""The beginning of a tool's type, which ends in a date → (default name, description, schema)."""


def client_tool(tool: dict[str, Any]) -> dict[str, Json] | None:
    """The function that a vendor-defined client tool is for a local model, or None for every other type."""
    kind = str(tool.get("type") or "")
    found = next((known for prefix, known in _TOOLS.items() if kind.startswith(prefix)), None)
    if found is None:
        return None
    name, description, schema = found
    width, height = tool.get("display_width_px"), tool.get("display_height_px")
    if isinstance(width, int) and isinstance(height, int):
        description = f"{description} The screen has {width} x {height} pixels."
    return {"name": str(tool.get("name") or name), "description": description, "parameters": schema}
