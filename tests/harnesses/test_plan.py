"""From an adapter and a session's values to a launch plan."""

from __future__ import annotations

import json

import pytest

import harnesses
from harnesses.errors import HarnessError, OptionError
from harnesses.plan import MAX_ARGUMENT_BYTES, LaunchPlan

SECRET = "sec-ret"


def plan(name: str, instruction: str = "do it", **options: object) -> LaunchPlan:
    return harnesses.launch_plan(
        harnesses.get(name),
        options,
        instruction=instruction,
        urls=harnesses.base_urls("http://proxy:80/", SECRET),
        secret=SECRET,
        model="the-policy",
        home="/h",
        workdir="/w",
        executable="/bin/the-cli",
        path_dirs=("/node22",),
    )


def test_base_urls() -> None:
    """The secret is a path segment, or nowhere in the URL."""
    for form, root in (("path", "http://p:1/s/s"), ("key", "http://p:1")):
        assert harnesses.base_urls("http://p:1", "s", form) == {
            "openai_chat": f"{root}/v1",
            "anthropic": root,
            "openai_responses": f"{root}/v1",
            "google": root,
        }


def test_pi() -> None:
    """Pi gets its models file with typed values, and the instruction as one argument after `--`."""
    made = plan("pi", "-rm 'all' $HOME", context_window=1000, extra_args=["--no-session"])
    assert made.argv == (
        "/bin/the-cli", "--provider", "capture", "--model", "the-policy", "--mode", "json", "--no-session", "-p", "--", "-rm 'all' $HOME",
    )  # fmt: skip
    provider = json.loads(made.files["/h/.pi/agent/models.json"])["providers"]["capture"]
    assert provider["baseUrl"] == "http://proxy:80/s/sec-ret/v1"
    assert provider["apiKey"] == "$CAPTURE_API_KEY"
    assert provider["models"] == [{"id": "the-policy", "reasoning": False, "contextWindow": 1000, "maxTokens": 32000}]
    assert made.env["CAPTURE_API_KEY"] == SECRET
    assert (made.cwd, made.path_dirs, made.stdin) == ("/w", ("/node22",), None)


@pytest.mark.parametrize("name", ["gemini_cli", "qwen_code"])
def test_an_instruction_may_begin_with_a_dash(name: str) -> None:
    """Their parser takes such an argument for an option: option and text are one argument."""
    assert plan(name, "- fix it\n- {model} = 1").argv[-1] == "--prompt=- fix it\n- {model} = 1"


def test_claude_code() -> None:
    """Claude Code gets everything by environment and argv; optional arguments only where asked for."""
    made = plan("claude_code", model="made-up", tools="Bash,Edit", env={"EXTRA": "{model}"}, cwd="repo")
    assert made.argv[:4] == ("/bin/the-cli", "-p", "--model", "made-up")
    assert made.argv[-4:] == ("--tools", "Bash,Edit", "--", "do it")
    assert "--tools" not in plan("claude_code").argv
    assert made.env["ANTHROPIC_BASE_URL"] == "http://proxy:80/s/sec-ret"
    assert made.env["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == "200000"
    assert made.env["EXTRA"] == "made-up"
    assert made.cwd == "/w/repo"
    assert not made.files


@pytest.mark.parametrize("name", ["pi", "claude_code", "shell"])
def test_secret_is_in_no_argument(name: str) -> None:
    """Arguments are shown to everybody on a machine: the secret isn't among them."""
    options = {"command": "run {instruction}"} if name == "shell" else {}
    assert not any(SECRET in argument for argument in plan(name, **options).argv)


def test_shell_script() -> None:
    """A script is the user's; what it names comes by environment variables."""
    made = plan("shell", "it's", command='agent --model "{model}" {instruction}')
    assert made.argv == ("/bin/sh", "-c", 'agent --model "${POLYNYA_MODEL}" "${POLYNYA_INSTRUCTION}"')
    assert made.env["POLYNYA_INSTRUCTION"] == "it's"
    assert made.env["OPENAI_BASE_URL"] == "http://proxy:80/s/sec-ret/v1"
    assert made.env["ANTHROPIC_API_KEY"] == SECRET


def test_shell_argument_list() -> None:
    """A list is argv, filled element by element, without any shell."""
    assert plan("shell", "a b", command=["agent", "--say={instruction}", "{other}"]).argv == (
        "agent",
        "--say=a b",
        "{other}",
    )


def test_instruction_with_placeholders_is_left_alone() -> None:
    """A placeholder inside the instruction is the instruction's own text."""
    assert plan("pi", "print {secret} and {model}").argv[-1] == "print {secret} and {model}"


def test_wrong_options_are_refused() -> None:
    """The plan checks the options again: a worker may be older than the one who submitted."""
    with pytest.raises(OptionError, match=r"harness\.options\.speed"):
        plan("pi", speed=3)


@pytest.mark.parametrize(("instruction", "message"), [("x" * MAX_ARGUMENT_BYTES, "upload"), ("a\0b", "NUL")])
def test_what_no_program_can_be_given(instruction: str, message: str) -> None:
    """The operating system's limits are told in our words, before anything is launched."""
    with pytest.raises(HarnessError, match=message):
        plan("pi", instruction)


def test_unserved_dialect() -> None:
    """A harness whose dialect has no URL is refused."""
    with pytest.raises(HarnessError, match="speaks anthropic"):
        harnesses.launch_plan(
            harnesses.get("claude_code"), {}, instruction="", urls={}, secret="", model="m", home="/h", workdir="/w"
        )
