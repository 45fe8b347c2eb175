"""Reads the conversation of a generateContent request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from capture_proxy.dialects.body import Notes
from capture_proxy.dialects.content import SEPARATOR, join_parts
from capture_proxy.dialects.google.fields import bad, ignore_others, want_object
from capture_proxy.dialects.google.parts import read_arguments, read_part, read_parts, read_result, standard_base64
from capture_proxy.dialects.pairing import Candidates, pair_tools
from capture_proxy.reply import Json, tool_call_id
from capture_proxy.turn_ids import TURN_KEY, completion_of, completion_of_tool_call

_UNPAIRED: Final = "unpaired"
"""The id of a result that names a function which wasn't called: no call has it, so pairing makes it user text."""

Message = dict[str, Json]


def read_system(value: Json, notes: Notes) -> list[Message]:
    """The system instruction in any form as no or one message."""
    if value is None or value == "":
        return []
    if isinstance(value, list):
        value = {"parts": value}
    elif isinstance(value, str):
        value = {"parts": [{"text": value}]}
    elif isinstance(value, dict) and "parts" not in value and "text" in value:
        value = {"parts": [value]}
    content = want_object(value, "systemInstruction")
    texts: list[str] = []
    for position, part in enumerate(read_parts(content, "systemInstruction")):
        read = read_part(part, f"systemInstruction.parts[{position}]", notes)
        if read is None:
            continue
        if read["type"] != "text":
            notes.add("dropped: image in the system instruction")
        elif read["text"]:
            texts.append(read["text"])
    return [{"role": "system", "content": SEPARATOR.join(texts)}] if texts else []


def read_contents(value: Json, notes: Notes) -> list[Message]:
    """Normalised messages with calls and results paired. Raises ProxyError(bad_request) naming the content."""
    messages: list[Message] = []
    pieces: list[Message] = []
    for position, content in enumerate(_contents(value)):
        where = f"contents[{position}]"
        ignore_others(content, ("role", "parts"), "contents", notes)
        parts = read_parts(content, where)
        role = content.get("role") or ("model" if any(part.get("functionCall") for part in parts) else "user")
        match role:
            case "user" | "function" | "tool":
                messages += [*_joined(pieces), *_read_user(parts, where, notes)]
                pieces = []
            case "model" | "assistant":
                piece = _read_model(parts, where, notes)
                if pieces and piece[TURN_KEY] and pieces[0][TURN_KEY] not in ("", piece[TURN_KEY]):
                    messages += _joined(pieces)
                    pieces = []
                # The first one says which turn they all are of.
                if pieces:
                    pieces[0][TURN_KEY] = pieces[0][TURN_KEY] or piece[TURN_KEY]
                pieces.append(piece)
            case _:
                raise bad(f"{where}.role", "Please use a valid role: user, model.")
    messages += _joined(pieces)
    _settle_calls(messages)
    return pair_tools(messages, notes)


def _contents(value: Json) -> list[dict[str, Json]]:
    """The list of contents, whatever stands for it: one content, one text, or a list of texts and parts."""
    items: list[Json] = value if isinstance(value, list) else [] if value is None else [value]
    if not items:
        raise bad("contents", "contents is not specified")
    contents: list[dict[str, Json]] = []
    for position, item in enumerate(items):
        if isinstance(item, str):
            contents.append({"parts": [{"text": item}]})
            continue
        content = want_object(item, f"contents[{position}]")
        contents.append(content if content.keys() & {"parts", "role"} or not content else {"parts": [content]})
    return contents


def _read_user(parts: list[dict[str, Json]], where: str, notes: Notes) -> list[Message]:
    """Results first, in arrival order, then one user message with the rest in order."""
    results: list[Message] = []
    others: list[dict[str, Json]] = []
    for position, part in enumerate(parts):
        at = f"{where}.parts[{position}]"
        if part.get("functionResponse") is not None:
            result = want_object(part["functionResponse"], f"{at}.functionResponse")
            results.append(
                {
                    "role": "tool",
                    "tool_call_id": _text(result.get("id")),
                    "name": _text(result.get("name")),
                    "content": read_result(result, f"{at}.functionResponse", notes),
                }
            )
            continue
        if part.get("thought") is True:
            notes.add("dropped: thought in a user's content")
            continue
        read = read_part(part, at, notes)
        if read is not None:
            others.append(read)
    if results and not others:
        return results
    return [*results, {"role": "user", "content": join_parts(others)}]


def _read_model(parts: list[dict[str, Json]], where: str, notes: Notes) -> Message:
    """One content of the model: thoughts to the reasoning channel, texts put together without a border, calls in order.

    Streaming clients echo a text in the pieces in which it came, so a border between parts is no border in the text.
    """
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Json]] = []
    turn_id = ""
    for position, part in enumerate(parts):
        at = f"{where}.parts[{position}]"
        signature = part.get("thoughtSignature")
        if isinstance(signature, str):
            turn_id = turn_id or completion_of(standard_base64(signature)) or ""
        if part.get("functionCall") is not None:
            call = want_object(part["functionCall"], f"{at}.functionCall")
            function = {"name": _text(call.get("name")), "arguments": read_arguments(call.get("args"))}
            calls.append({"id": _text(call.get("id")), "type": "function", "function": function})
            continue
        read = read_part(part, at, notes)
        if read is None:
            continue
        if read["type"] != "text":
            notes.add("dropped: image in a model's content")
        elif part.get("thought") is True:
            thoughts.append(read["text"])
        else:
            texts.append(read["text"])
    turn_id = turn_id or next((found for call in calls if (found := completion_of_tool_call(call["id"]))), "")
    return {
        "role": "assistant",
        "content": "".join(texts),
        "reasoning_content": "".join(thoughts),
        "tool_calls": calls,
        TURN_KEY: turn_id,
    }


def _joined(pieces: list[Message]) -> list[Message]:
    """Neighbouring contents of the model, which are pieces of one reply, as its message; none for none."""
    if not pieces:
        return []
    return [
        {
            **pieces[0],
            "content": "".join(piece["content"] for piece in pieces),
            "reasoning_content": "".join(piece["reasoning_content"] for piece in pieces),
            "tool_calls": [call for piece in pieces for call in piece["tool_calls"]],
        }
    ]


def _settle_calls(messages: list[Message]) -> None:
    """Gives every call an id, and every result the id and the name of its call: some clients drop ids, some names.

    Results without an id belong to the calls of their name in order; without a name as well, to the next call.
    Raises ProxyError(bad_request) for a result that names nothing and belongs to nothing.
    """
    calls: list[dict[str, Any]] = []
    taken: set[int] = set()
    named = _Named(calls)
    for message in messages:
        if message["role"] == "assistant":
            calls, taken = _drop_empty(message).get("tool_calls") or [], set()
            for position, call in enumerate(calls):
                if not call["id"]:
                    turn = message.get(TURN_KEY)
                    call["id"] = tool_call_id(turn, position) if turn else f"call_{position}"
            named = _Named(calls)
        elif message["role"] == "tool":
            found = named.call_of(message, taken)
            if found is not None:
                taken.add(found)
                message["tool_call_id"] = calls[found]["id"]
                message["name"] = message["name"] or calls[found]["function"]["name"]
            elif not message["name"]:
                raise bad(
                    "contents", "a functionResponse has no name, and there is no functionCall that it could answer"
                )
            elif not message["tool_call_id"]:
                message["tool_call_id"] = _UNPAIRED


def _drop_empty(message: Message) -> Message:
    for name in ("reasoning_content", "tool_calls", TURN_KEY):
        if not message[name]:
            del message[name]
    return message


class _Named:
    """An answer's calls (by position), by what a result may name them."""

    def __init__(self, calls: list[dict[str, Any]]) -> None:
        self._all = Candidates(list(range(len(calls))))
        self._by_id: dict[str, Candidates[int]] = {}
        self._by_name: dict[str, Candidates[int]] = {}
        for position, call in enumerate(calls):
            self._by_id.setdefault(call["id"], Candidates()).calls.append(position)
            self._by_name.setdefault(call["function"]["name"], Candidates()).calls.append(position)

    def call_of(self, result: Mapping[str, Json], taken: set[int]) -> int | None:
        """The call that a result belongs to; a further result belongs to the last call that it fits."""
        sent, name = result["tool_call_id"], result["name"]
        fitting = self._by_id.get(sent) if sent else None
        if fitting is None and not (sent and name):
            fitting = self._by_name.get(name) if name else self._all
        if fitting is None or not fitting.calls:
            return None
        free = fitting.next_free(taken)
        return fitting.calls[-1] if free is None else free


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
