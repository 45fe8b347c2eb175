"""Message content of any dialect as OpenAI parts: text joined in order, images kept, everything else as fixed text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from capture_proxy.reply import Json, ProxyError

SEPARATOR = "\n"
"""Joins the text blocks of one message; the same on every turn, so that earlier turns keep their tokens."""

ERROR_MARK = "Error:"
"""First line of a failed tool's result: chat messages have no field for it, and the model must not read it as success."""


def text_part(text: str) -> dict[str, Json]:
    """A text part."""
    return {"type": "text", "text": text}


def image_part(url: str) -> dict[str, Json]:
    """An image part; `url` may be a data URL."""
    return {"type": "image_url", "image_url": {"url": url}}


def join_parts(parts: Sequence[dict[str, Json]]) -> str | list[dict[str, Json]]:
    """One string when the parts are all text (a string and its one-block form are equal then), else the list of parts."""
    if all(part["type"] == "text" for part in parts):
        return SEPARATOR.join(part["text"] for part in parts)
    return list(parts)


def read_parts(content: Json, where: str, read_part: Callable[[Json], dict[str, Json]]) -> str | list[dict[str, Json]]:
    """The content of an OpenAI message: a string or parts. Raises ProxyError(bad_request)."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise ProxyError(
            "bad_request", f"{where}.content: must be a string or a list of parts", param=f"{where}.content"
        )
    return join_parts([read_part(part) for part in content])


def prepend_text(text: str, content: str | list[dict[str, Json]]) -> str | list[dict[str, Json]]:
    """Content with a line of text in front."""
    if isinstance(content, str):
        return f"{text}{SEPARATOR}{content}" if content else text
    return [text_part(text), *content]


def merge_content(*contents: str | list[dict[str, Json]]) -> str | list[dict[str, Json]]:
    """Several contents as one, in order."""
    parts = [
        part
        for content in contents
        for part in (content if isinstance(content, list) else [text_part(content)] if content else [])
    ]
    return join_parts(parts)


def unsupported(kind: str) -> dict[str, Json]:
    """The fixed text that stands for a block no model of ours can read."""
    return text_part(f"[unsupported block: {kind}]")


def base64_size_bytes(data: str) -> int:
    """How many bytes a base64 text stands for."""
    return len(data) * 3 // 4 - data[-2:].count("=")


def placeholder(kind: str, *facts: str) -> dict[str, Json]:
    """The fixed text that stands for a binary attachment: its kind and the facts that are known."""
    return text_part(f"[{': '.join([kind, ', '.join(fact for fact in facts if fact)])}]")
