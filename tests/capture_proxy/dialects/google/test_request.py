"""generateContent requests, normalised."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from capture_proxy.dialects.google import DIALECT
from capture_proxy.dialects.pairing import NO_RESULT, ORPHAN
from capture_proxy.reply import ChatRequest, ProxyError, tool_call_id
from capture_proxy.turn_ids import turn_token

PATH = "/v1beta/models/m:generateContent"
TURN = "11112222-3333-4444-5555-666677778888"
OTHER = "22222222-3333-4444-5555-666677778888"
PNG = "iVBORw0KGgo="


def read(*contents: Any, **fields: Any) -> ChatRequest:
    """A request with these contents."""
    return DIALECT.parse_request(PATH, {}, json.dumps({"contents": contents or [user("Hi")], **fields}).encode())


def user(*parts: Any) -> dict[str, Any]:
    """A content of the user; strings are text parts."""
    return {"role": "user", "parts": [{"text": part} if isinstance(part, str) else part for part in parts]}


def model(*parts: Any) -> dict[str, Any]:
    """A content of the model."""
    return {**user(*parts), "role": "model"}


def call(name: str, call_id: str = "", **args: Any) -> dict[str, Any]:
    """A functionCall part."""
    return {"functionCall": {"name": name, "args": args, **({"id": call_id} if call_id else {})}}


def result(name: str, output: Any, call_id: str = "") -> dict[str, Any]:
    """A functionResponse part."""
    response = {"name": name, "response": {"output": output}}
    return {"functionResponse": {**response, **({"id": call_id} if call_id else {})}}


def error_of(**fields: Any) -> ProxyError:
    """What such a request is refused with."""
    with pytest.raises(ProxyError) as caught:
        read(**fields)
    assert caught.value.kind == "bad_request"
    return caught.value


def brief(request: ChatRequest) -> list[tuple[str, Any]]:
    """Role and content of each message."""
    return [(message["role"], message["content"]) for message in request.messages]


# --- contents


def test_a_whole_conversation() -> None:
    """Text, thoughts, a call and its result become chat messages; the order of arguments stays."""
    request = read(
        user("What is here?", "Be quick."),
        model({"text": "Hm.", "thought": True}, "I look.", call("ls", "c1", b=1, a="é")),
        user(result("ls", "x.txt", "c1")),
    )
    assert request.messages == [
        {"role": "user", "content": "What is here?\nBe quick."},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"b":1,"a":"é"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "name": "ls", "content": "x.txt"},
    ]
    assert (request.dialect, request.model, request.stream, request.notes) == ("google", "m", False, ())
    assert request.turn_ids == ()


@pytest.mark.parametrize(
    "contents",
    [
        "Hi",
        ["Hi"],
        {"parts": [{"text": "Hi"}]},
        {"text": "Hi"},
        [{"text": "Hi"}],
        [{"role": "user", "parts": "Hi"}],
        [{"parts": {"text": "Hi"}}],
        [{"role": None, "parts": [None, {"text": "Hi"}]}],
    ],
)
def test_short_forms_of_contents(contents: Any) -> None:
    """Strings, single contents and single parts are what they stand for; without a role it is the user."""
    body = json.dumps({"contents": contents}).encode()
    assert DIALECT.parse_request(PATH, {}, body).messages == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("contents", "field"),
    [
        ([], "contents"),
        (3, "contents[0]"),
        ([{"role": "system", "parts": []}], "contents[0].role"),
        ([{"role": "user", "parts": [3]}], "contents[0].parts[0]"),
        ([{"role": "user", "parts": [{"text": 3}]}], "contents[0].parts[0].text"),
        ([{"role": "model", "parts": [{"functionCall": 3}]}], "contents[0].parts[0].functionCall"),
    ],
)
def test_contents_that_cant_be_read_are_refused(contents: Any, field: str) -> None:
    """With the place that is at fault."""
    error = error_of(contents=contents)
    assert error.param == field
    assert error.message.startswith(field)


def test_a_streamed_answer_that_is_echoed_in_pieces_is_one_message() -> None:
    """One SDK's chat keeps every chunk as a content of its own: texts are put together as they came."""
    mark = {"thoughtSignature": turn_token(TURN)}
    request = read(
        user("go"),
        model({"text": "Let", **mark}),
        model(" me"),
        model({"text": "\n\nlook."}),
        model({**call("ls"), **mark}),
        model({"text": "", **mark}),
        user(result("ls", "x")),
    )
    assert brief(request)[1] == ("assistant", "Let me\n\nlook.")
    assert [c["function"]["name"] for c in request.messages[1]["tool_calls"]] == ["ls"]
    assert request.turn_ids == ("", TURN, "")


def test_two_answers_in_a_row_stay_two() -> None:
    """Where both say which call they are, they aren't pieces of one reply."""
    request = read(
        user("go"),
        model({"text": "a", "thoughtSignature": turn_token(TURN)}),
        model({"text": "b", "thoughtSignature": turn_token(OTHER)}),
    )
    assert brief(request)[1:] == [("assistant", "a"), ("assistant", "b")]
    assert request.turn_ids == ("", TURN, OTHER)


def test_the_signature_names_the_turn_in_either_alphabet() -> None:
    """An SDK that holds it as bytes sends it back in the alphabet that is safe in URLs; a foreign one names nothing."""
    token = next(
        token
        for number in range(10_000)
        if {"+", "/"} & set(token := turn_token(f"11112222-3333-4444-5555-{number:012x}ff"[:36]))
    )
    safe = base64.urlsafe_b64encode(base64.b64decode(token)).decode()
    assert safe != token
    turns = [read(user("a"), model({"text": "b", "thoughtSignature": sent})).turn_ids[1] for sent in (token, safe)]
    assert turns[0]
    assert turns[0] == turns[1]
    for foreign in ("skip_thought_signature_validator", "", 3):
        assert read(user("a"), model({"text": "b", "thoughtSignature": foreign})).turn_ids == ()


def test_a_signature_alone_is_no_part() -> None:
    """A client that strips an empty text leaves a mere signature: no content, but still the turn."""
    request = read(user("a"), model("b", {"thoughtSignature": turn_token(TURN)}, {"text": "", "thought": True}))
    assert request.messages[1] == {"role": "assistant", "content": "b"}
    assert request.turn_ids == ("", TURN)


def test_a_calls_id_names_the_turn_where_no_signature_does() -> None:
    """Clients that drop signatures but keep ids are understood as well."""
    request = read(user("a"), model(call("ls", tool_call_id(TURN, 0))), user(result("ls", "x", tool_call_id(TURN, 0))))
    assert request.turn_ids == ("", TURN, "")


# --- calls and results


def test_b73_parallel_responses_split_over_several_contents() -> None:
    """Results come first, in arrival order, then the text; a missing one gets the fixed form; `role: function` is accepted."""
    calls = model(call("f", "x1"), call("g", "x2"))
    split = read(user("go"), calls, user(result("f", "1", "x1")), user(result("g", "2", "x2"), "also"))
    assert brief(split)[2:] == [("tool", "1"), ("tool", "2"), ("user", "also")]
    assert [message.get("tool_call_id") for message in split.messages[2:]] == ["x1", "x2", None]

    missing = read(user("go"), calls, user(result("f", "1", "x1")), user("also"))
    assert brief(missing)[2:] == [("tool", "1"), ("tool", NO_RESULT), ("user", "also")]
    assert missing.notes == ("repaired: tool call without a result",)

    function = read(
        user("go"), calls, {**user(result("f", "1", "x1")), "role": "function"}, user(result("g", "2", "x2"))
    )
    assert brief(function)[2:] == [("tool", "1"), ("tool", "2")]


def test_b74_an_empty_name_is_resolved() -> None:
    """By the call's id, else by position; a result that names nothing and answers nothing is refused."""
    calls = model(call("f", "x1"), call("g", "x2"))
    by_id = read(user("go"), calls, user(result("", "2", "x2"), result("", "1", "x1")))
    assert [(m["tool_call_id"], m["name"], m["content"]) for m in by_id.messages[2:]] == [
        ("x2", "g", "2"),
        ("x1", "f", "1"),
    ]
    by_position = read(user("go"), model(call("f"), call("g")), user(result("", "1"), result("", "2")))
    assert [(m["name"], m["content"]) for m in by_position.messages[2:]] == [("f", "1"), ("g", "2")]
    assert error_of(contents=[user("go"), user(result("", "1"))]).param == "contents"


def test_calls_without_ids_are_paired_by_name_in_order() -> None:
    """Two harnesses drop the ids: results of one name go to its calls in order, whatever stands between them."""
    request = read(
        user("go"),
        model(call("f", n=1), call("g", n=2), call("f", n=3)),
        user(result("g", "g2"), result("f", "f1"), result("f", "f3")),
    )
    ids = {c["id"]: c["function"]["arguments"] for c in request.messages[1]["tool_calls"]}
    assert len(ids) == 3
    paired = [(ids[m["tool_call_id"]], m["content"]) for m in request.messages[2:]]
    assert paired == [('{"n":2}', "g2"), ('{"n":1}', "f1"), ('{"n":3}', "f3")]
    assert request.notes == ()


def test_dropped_ids_come_back_from_the_signature() -> None:
    """The call's own id is computed again, so that the history reads as it was."""
    mark = {"thoughtSignature": turn_token(TURN)}
    request = read(user("go"), model({**call("f"), **mark}, call("f")), user(result("f", "1"), result("f", "2")))
    ids = [c["id"] for c in request.messages[1]["tool_calls"]]
    assert ids == [tool_call_id(TURN, 0), tool_call_id(TURN, 1)]
    assert [m["tool_call_id"] for m in request.messages[2:]] == ids


def test_duplicated_results_collapse() -> None:
    """A resumed session of one harness repeats every functionResponse, with ids or without."""
    for call_id in ("x1", ""):
        request = read(
            user("go"), model(call("f", call_id)), user(result("f", "1", call_id), result("f", "1", call_id))
        )
        assert brief(request)[2:] == [("tool", "1")]
        assert request.notes == ("repaired: several results for one tool call",)


def test_a_result_of_a_function_that_was_not_called_is_text() -> None:
    """It stays readable, and the call that has no result gets the fixed one."""
    request = read(user("go"), model(call("f")), user(result("h", "lost")))
    assert brief(request)[2:] == [("tool", NO_RESULT), ("user", f"{ORPHAN}\nlost")]


@pytest.mark.parametrize(
    ("response", "content"),
    [
        ({"output": "a\nb"}, "a\nb"),
        ({"output": {"a": "é"}}, '{"a":"é"}'),
        ({"error": "no such file"}, "Error:\nno such file"),
        ({"result": "a"}, '{"result":"a"}'),
        ({"name": "f", "content": "a"}, "a"),
        ({"name": "g", "content": "a"}, '{"name":"g","content":"a"}'),
        ({"output": "a", "exitCode": 0}, '{"output":"a","exitCode":0}'),
        ({}, ""),
        (None, ""),
        ("plain", "plain"),
    ],
)
def test_what_a_function_responds(response: Any, content: str) -> None:
    """`output` and `error` are what the vendor says they are; everything else is the whole response."""
    part = {"functionResponse": {"name": "f", "response": response}}
    assert read(user("go"), model(call("f")), user(part)).messages[2]["content"] == content


# --- system instruction, spellings


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"systemInstruction": "S"}, "S"),
        ({"systemInstruction": {"parts": [{"text": "S"}]}}, "S"),
        ({"systemInstruction": {"role": "user", "parts": [{"text": "S"}, {"text": "T"}]}}, "S\nT"),
        ({"system_instruction": {"parts": {"text": "S"}}}, "S"),
        ({"systemInstruction": ["S", {"text": "T"}]}, "S\nT"),
        ({"systemInstruction": {"text": "S"}}, "S"),
    ],
)
def test_b76_system_instruction_forms(fields: dict[str, Any], expected: str) -> None:
    """Whatever its form, it is one system message at the head."""
    request = read(**fields)
    assert request.messages == [{"role": "system", "content": expected}, {"role": "user", "content": "Hi"}]
    assert request.has_instructions


def test_b76_no_system_instruction() -> None:
    """Empty forms are none."""
    for value in (None, "", {}, {"parts": []}, {"parts": [{"text": ""}]}):
        request = read(systemInstruction=value)
        assert brief(request) == [("user", "Hi")]
        assert not request.has_instructions


def test_b76_snake_case_everywhere() -> None:
    """The vendor takes both spellings of every field of its own; names that are the client's stay as they are."""
    camel = read(
        user({"inlineData": {"mimeType": "image/png", "data": PNG}}),
        model({"functionCall": {"name": "f", "args": {"snake_case": 1}}, "thoughtSignature": turn_token(TURN)}),
        user({"functionResponse": {"name": "f", "response": {"output": {"snake_case": 2}}}}),
        generationConfig={"maxOutputTokens": 5, "topP": 0.5, "thinkingConfig": {"thinkingBudget": 0}},
        toolConfig={"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        tools=[{"functionDeclarations": [{"name": "f", "parameters": {"type": "OBJECT", "properties": {"a_b": {}}}}]}],
    )
    snake = read(
        user({"inline_data": {"mime_type": "image/png", "data": PNG}}),
        model({"function_call": {"name": "f", "args": {"snake_case": 1}}, "thought_signature": turn_token(TURN)}),
        user({"function_response": {"name": "f", "response": {"output": {"snake_case": 2}}}}),
        generation_config={"max_output_tokens": 5, "top_p": 0.5, "thinking_config": {"thinking_budget": 0}},
        tool_config={"function_calling_config": {"mode": "ANY", "allowed_function_names": ["f"]}},
        tools=[{"function_declarations": [{"name": "f", "parameters": {"type": "OBJECT", "properties": {"a_b": {}}}}]}],
    )
    assert snake == camel
    assert snake.notes == ()
    assert snake.messages[2]["content"] == '{"snake_case":2}'
    assert snake.sampling == {"max_tokens": 5, "top_p": 0.5}


# --- tools


def test_b77_declarations() -> None:
    """Types are lower-cased only where they are schema keywords; both schema fields and several entries count; hosted tools go."""
    request = read(
        tools=[
            {
                "functionDeclarations": [
                    {
                        "name": "a",
                        "description": "A.",
                        "parameters": {
                            "type": "OBJECT",
                            "properties": {
                                "x": {"type": "STRING", "nullable": True},
                                "y": {"type": "ARRAY", "items": {"type": "INTEGER"}, "minItems": "2"},
                                "type": {"type": "STRING", "enum": ["STRING", "NUMBER"]},
                                "z": {"any_of": [{"type": "STRING"}, {"type": "NULL"}], "propertyOrdering": ["q"]},
                            },
                            "required": ["x"],
                        },
                    },
                    {
                        "name": "b",
                        "parametersJsonSchema": {
                            "type": "object",
                            "properties": {"type": {"type": "string", "enum": ["STRING"]}},
                        },
                    },
                    {"name": "c", "behavior": "BLOCKING"},
                ]
            },
            {"googleSearch": {}},
            {"codeExecution": {}, "function_declarations": [{"name": "d"}]},
            {"urlContext": {}},
        ]
    )
    functions = {tool["function"]["name"]: tool["function"] for tool in request.tools}
    assert list(functions) == ["a", "b", "c", "d"]
    assert functions["a"]["description"] == "A."
    assert functions["a"]["parameters"] == {
        "type": "object",
        "properties": {
            "x": {"type": ["string", "null"]},
            "y": {"type": "array", "items": {"type": "integer"}, "minItems": 2},
            "type": {"type": "string", "enum": ["STRING", "NUMBER"]},
            "z": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["x"],
    }
    assert functions["b"]["parameters"]["properties"] == {"type": {"type": "string", "enum": ["STRING"]}}
    assert functions["c"]["parameters"] == {"type": "object", "properties": {}}
    assert request.notes == (
        "dropped hosted tool: codeExecution",
        "dropped hosted tool: googleSearch",
        "dropped hosted tool: urlContext",
        "ignored field: functionDeclarations.behavior",
        "ignored schema field: propertyOrdering",
    )


def test_b77_a_declaration_without_a_name_is_refused() -> None:
    """With its place."""
    error = error_of(tools=[{}, {"functionDeclarations": [{"name": "a"}, {"description": "?"}]}])
    assert error.param == "tools[1].functionDeclarations[1].name"


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"mode": "ANY", "allowedFunctionNames": ["a"]}, {"type": "function", "function": {"name": "a"}}),
        ({"mode": "ANY", "allowedFunctionNames": ["a", "b"]}, "required"),
        ({"mode": "ANY", "allowedFunctionNames": ["a", "gone"]}, {"type": "function", "function": {"name": "a"}}),
        ({"mode": "ANY", "allowedFunctionNames": ["gone"]}, "auto"),
        ({"mode": "ANY"}, "required"),
        ({"mode": "any"}, "required"),
        ({"mode": "AUTO"}, "auto"),
        ({"mode": "NONE"}, "none"),
        ({"mode": "VALIDATED"}, "auto"),
        ({"mode": "MODE_UNSPECIFIED"}, "auto"),
        ({}, None),
    ],
)
def test_b80_tool_config_modes(config: dict[str, Any], expected: Any) -> None:
    """A mode is OpenAI's choice; the list of tools in the prompt never changes with it."""
    tools = [{"functionDeclarations": [{"name": "a"}, {"name": "b"}]}]
    request = read(tools=tools, toolConfig={"functionCallingConfig": config})
    assert request.tool_choice == expected
    assert request.tools == read(tools=tools).tools


def test_b80_a_mode_without_tools_means_nothing() -> None:
    """Left behind after the tools were removed, it is dropped and noted."""
    request = read(toolConfig={"functionCallingConfig": {"mode": "ANY"}, "retrievalConfig": {"languageCode": "de"}})
    assert request.tool_choice is None
    assert request.notes == ("dropped: tool_choice without tools", "ignored field: toolConfig.retrievalConfig")


# --- media and what the vendor's server does


def test_b82_inline_data_and_file_data() -> None:
    """Images stay images, in order; what only the vendor's store holds is a placeholder, noted."""
    request = read(
        user(
            {"inlineData": {"mimeType": "image/png", "data": PNG}},
            {"fileData": {"mimeType": "application/pdf", "fileUri": "https://files.example/x"}},
            "see",
        )
    )
    assert request.messages[0]["content"] == [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "text", "text": "[file: application/pdf, https://files.example/x]"},
        {"type": "text", "text": "see"},
    ]
    assert request.notes == ("replaced: fileData",)


def test_b82_other_media() -> None:
    """Audio and documents are placeholders with type and size, text is read, an image's alphabet becomes the standard one."""
    request = read(
        user(
            {"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}},
            {"inlineData": {"mimeType": "text/plain", "data": base64.b64encode("é!".encode()).decode()}},
        )
    )
    assert request.messages[0]["content"] == "[audio: audio/wav, 3 bytes]\né!"
    assert request.notes == ("replaced: inlineData audio/wav",)
    image = read(user({"inlineData": {"mimeType": "image/png", "data": "-_-_"}, "videoMetadata": {"fps": 1}}))
    assert image.messages[0]["content"][0]["image_url"]["url"] == "data:image/png;base64,+/+/"
    assert image.notes == ("ignored field: parts.videoMetadata",)


def test_b82_images_in_a_functions_response() -> None:
    """`functionResponse.parts` are part of the result."""
    part = {
        "functionResponse": {
            "name": "shot",
            "response": {"output": "done"},
            "parts": [{"inlineData": {"mimeType": "image/png", "data": PNG}}],
        }
    }
    message = read(user("go"), model(call("shot")), user(part)).messages[2]
    assert message["role"] == "tool"
    assert message["content"] == [
        {"type": "text", "text": "done"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
    ]


def test_what_the_vendors_server_ran_is_text() -> None:
    """Code and its outcome stay readable; kinds that nobody knows become the fixed placeholder."""
    request = read(
        user("go"),
        model(
            {"executableCode": {"language": "PYTHON", "code": "1+1"}},
            {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "2"}},
            {"futureThing": {}},
        ),
    )
    assert request.messages[1]["content"] == "```python\n1+1\n```OUTCOME_OK\n2[unsupported block: futureThing]"
    assert request.notes == (
        "replaced: codeExecutionResult",
        "replaced: executableCode",
        "replaced: futureThing",
    )


# --- controls


def test_b83_safety_settings_and_labels_are_ignored_a_cached_prompt_is_refused() -> None:
    """What means nothing here is noted; what stands for missing prompt text can't be ignored."""
    request = read(
        safetySettings=[{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}], labels={}, store=None
    )
    assert request.notes == ("ignored field: labels", "ignored field: safetySettings")
    error = error_of(cachedContent="cachedContents/none")
    assert error.param == "cachedContent"
    assert "contents" in error.message


def test_generation_config() -> None:
    """Sampling under OpenAI's names, whole numbers whole."""
    request = read(
        generationConfig={
            "temperature": 1,
            "topP": 0.95,
            "topK": 64.0,
            "seed": 7,
            "presencePenalty": 0.5,
            "frequencyPenalty": -0.5,
            "stopSequences": ["END"],
            "candidateCount": 1,
            "responseLogprobs": True,
            "logprobs": 3,
            "mediaResolution": "MEDIA_RESOLUTION_LOW",
        }
    )
    assert request.sampling == {
        "temperature": 1,
        "top_p": 0.95,
        "top_k": 64,
        "seed": 7,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "stop": ["END"],
    }
    assert request.top_logprobs == 3
    assert request.notes == ("ignored field: generationConfig.mediaResolution",)
    assert read().top_logprobs is None
    assert read(generationConfig={"responseLogprobs": True}).top_logprobs == 0


def test_t68_the_limit_of_output_tokens() -> None:
    """`maxOutputTokens` is the engine's limit; without it none is asked for, and the default applies."""
    assert read(generationConfig={"maxOutputTokens": 5}).sampling == {"max_tokens": 5}
    assert read().sampling == {}


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"candidateCount": 2}, "generationConfig.candidateCount"),
        ({"temperature": "hot"}, "generationConfig.temperature"),
        ({"maxOutputTokens": 0}, "generationConfig.maxOutputTokens"),
        ({"stopSequences": [1]}, "generationConfig.stopSequences"),
        ({"responseModalities": ["IMAGE"]}, "generationConfig.responseModalities"),
        ({"thinkingConfig": 3}, "generationConfig.thinkingConfig"),
    ],
)
def test_controls_that_are_refused(config: dict[str, Any], field: str) -> None:
    """With the field's place."""
    error = error_of(generationConfig=config)
    assert error.param == field
    assert field in error.message


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, None),
        ({"responseMimeType": "text/plain"}, None),
        ({"responseMimeType": "application/json"}, {"type": "json_object"}),
        (
            {"responseMimeType": "application/json", "responseSchema": {"type": "OBJECT"}},
            {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "object"}}},
        ),
        (
            {"responseMimeType": "application/json", "responseJsonSchema": {"type": "array"}},
            {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "array"}}},
        ),
    ],
)
def test_structured_output(config: dict[str, Any], expected: Any) -> None:
    """A schema in either form."""
    assert read(generationConfig=config).response_format == expected


@pytest.mark.parametrize(
    ("config", "kwargs", "shows"),
    [
        ({}, {}, False),
        ({"includeThoughts": True}, {}, True),
        ({"includeThoughts": True, "thinkingBudget": 8192}, {"enable_thinking": True}, True),
        ({"thinkingBudget": -1}, {"enable_thinking": True}, False),
        ({"thinkingBudget": 0}, {"enable_thinking": False}, False),
        ({"thinkingLevel": "HIGH"}, {"enable_thinking": True, "reasoning_effort": "high"}, False),
        ({"thinkingLevel": "minimal"}, {"enable_thinking": False}, False),
    ],
)
def test_thinking(config: dict[str, Any], kwargs: dict[str, Any], shows: bool) -> None:
    """Budget and level turn the template's switch; whether thoughts are shown is another matter."""
    request = read(generationConfig={"thinkingConfig": config})
    assert request.template_kwargs == kwargs
    assert request.echo["thoughts"] is shows


def test_b85_counting_takes_both_forms() -> None:
    """Bare contents, or a whole request in its wrapper, system instruction and tools included."""
    inner = {"contents": [user("Hi")], "systemInstruction": "S", "tools": [{"functionDeclarations": [{"name": "a"}]}]}
    path = "/v1beta/models/m:countTokens"
    bare = DIALECT.parse_count(path, {}, json.dumps(inner).encode())
    for name in ("generateContentRequest", "generate_content_request"):
        wrapped = DIALECT.parse_count(path, {}, json.dumps({name: {"model": "models/m", **inner}}).encode())
        assert wrapped == bare
    assert brief(bare) == [("system", "S"), ("user", "Hi")]
    assert [tool["function"]["name"] for tool in bare.tools] == ["a"]
