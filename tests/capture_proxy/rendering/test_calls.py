"""Tool calls in text: all well-formed, or none."""

from __future__ import annotations

import orjson
import pytest

from capture_proxy.rendering.calls import read_json_calls, read_xml_calls


def wrap(*bodies: str) -> str:
    """Bodies as blocks."""
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"name":"ls","arguments":{}}', "{}"),
        ('{"name": "ls", "arguments": {"p": "ü/日本",  "n":1.0}}', '{"p": "ü/日本",  "n":1.0}'),
        ('{"arguments": {"a": [1, {"b": "}"}]}, "name": "ls", "id": 7}', '{"a": [1, {"b": "}"}]}'),
        ('{"name":"ls","arguments":{"t":"</tool_call>"}}', '{"t":"</tool_call>"}'),
        ('{"name":"ls"}', "{}"),
        ('{"name":"l\\u0073","arguments":{"\\ud83d":1}}', '{"\\ud83d":1}'),
    ],
)
def test_arguments_are_the_sampled_text(body: str, arguments: str) -> None:
    """Spacing, escapes, number forms and key order come out byte for byte."""
    held = wrap(body)
    found = read_json_calls(held, ())
    assert found is not None
    calls, rest = found
    assert [(call.name, call.arguments, held[call.start : call.end]) for call in calls] == [("ls", arguments, held)]
    assert rest == ""


@pytest.mark.parametrize(
    "body",
    [
        '{"cmd": "ls"',
        "{'name':'ls','arguments':{}}",
        '{"name":"f","arguments":{"cmd":"a\nb"}}',
        '["ls"]',
        '"ls"',
        '{"arguments":{}}',
        '{"name":"","arguments":{}}',
        '{"name":7,"arguments":{}}',
        '{"name":"f","arguments":"{}"}',
        '{"name":"f","arguments":{"x":NaN}}',
        '{"name":"f","arguments":{},}',
        '{"name":"f" "arguments":{}}',
        '{"name":"f","arguments":{}}{"name":"g","arguments":{}}',
        "",
    ],
)
def test_malformed_calls_are_no_calls(body: str) -> None:
    """Whatever is wrong, nothing is guessed; one bad call spoils its siblings too."""
    good = '{"name":"ls","arguments":{}}'
    assert read_json_calls(wrap(body), ()) is None
    assert read_json_calls(wrap(good, body), ()) is None


def test_several_calls_and_the_text_between() -> None:
    """Calls in order; what stands between and after them is text."""
    held = wrap('{"name":"a","arguments":{}}') + " and " + wrap('{"name":"b","arguments":{}}') + "\nbye\n"
    found = read_json_calls(held, ())
    assert found is not None
    assert [call.name for call in found[0]] == ["a", "b"]
    assert found[1] == "and \nbye"


def test_a_cut_call_is_no_call() -> None:
    """Every proper prefix of a block is text."""
    held = wrap('{"name":"ls","arguments":{"a":1}}')
    assert all(read_json_calls(held[:end], ()) is None for end in range(len(held)))


def test_xml_calls_are_typed_by_the_schema() -> None:
    """Strings stay strings, numbers and objects are read where the schema says so, newlines inside survive."""
    properties = {"n": {"type": "integer"}, "s": {"type": "string"}, "o": {"type": ["object", "null"]}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}]
    body = '<function=f>\n<parameter=n>\n5\n</parameter>\n<parameter=s>\n5\n\n</parameter>\n<parameter=o>{"a":1}</parameter>\n</function>'
    found = read_xml_calls(wrap(body, "<function=ls></function>"), tools)
    assert found is not None
    assert [(call.name, orjson.loads(call.arguments)) for call in found[0]] == [
        ("f", {"n": 5, "s": "5\n", "o": {"a": 1}}),
        ("ls", {}),
    ]
    assert read_xml_calls(wrap("<function=f><parameter=n>5</function>"), tools) is None
    assert read_xml_calls(wrap("<function=f>"), tools) is None
    assert read_xml_calls(wrap("f()"), tools) is None
