"""Errors as the vendors' own SDKs see them, and what their retries cost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from schemas.records import CompletionState
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.sdk.driver import Driver

pytestmark = [
    pytest.mark.component,
    pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession:DeprecationWarning"),  # an SDK's own
]

MakeStack = Callable[..., Awaitable[Stack]]


async def refused(stack: Stack, sdk: Driver, stream: bool, status: int, **client_options: object) -> Exception:
    """The exception of one call, checked for its class and status."""
    async with sdk.client(stack, **client_options) as client:  # type: ignore[arg-type]
        with pytest.raises(sdk.errors[status]) as caught:
            await sdk.ask(client, sdk.user("Hi"), stream=stream)
    assert sdk.status_of(caught.value) == status
    return caught.value


async def test_401(stack: Stack, sdk: Driver, stream: bool) -> None:
    """A key that opens nothing."""
    await refused(stack, sdk, stream, 401, secret="another", retries=2)
    assert not stack.engine.requests
    assert len(stack.rejections) == 1  # never tried again


async def test_400(stack: Stack, sdk: Driver, stream: bool) -> None:
    """A request that no conversation can be read from."""
    async with sdk.client(stack, retries=2) as client:
        with pytest.raises(sdk.errors[400]) as caught:
            await sdk.ask(client, sdk.nonsense(), stream=stream)
    assert sdk.status_of(caught.value) == 400
    assert not stack.engine.requests


async def test_404(stack: Stack, sdk: Driver) -> None:
    """An endpoint that isn't there."""
    async with sdk.client(stack) as client:
        with pytest.raises(sdk.errors[404]):
            await sdk.missing(client)


async def test_409(stack: Stack, sdk: Driver, stream: bool) -> None:
    """A lease that has ended takes nothing more, and the SDK doesn't try again."""
    await stack.seal()
    await refused(stack, sdk, stream, 409, retries=2)
    assert len(stack.rejections) == 1


async def test_413(make_stack: MakeStack, sdk: Driver, stream: bool) -> None:
    """A body above the limit."""
    stack = await make_stack(max_request_bytes=2000)
    await stack.open()
    async with sdk.client(stack, retries=2) as client:
        with pytest.raises(sdk.errors[413]) as caught:
            await sdk.ask(client, sdk.user("x" * 3000), stream=stream)
    assert sdk.status_of(caught.value) == 413


async def test_429_with_retry_after(stack: Stack, sdk: Driver, stream: bool) -> None:
    """A busy engine's 429 keeps its header, and is recorded as failed."""
    stack.engine.status, stack.engine.headers = 429, {"retry-after": "7"}
    error = await refused(stack, sdk, stream, 429)
    assert sdk.retry_after_of(error) == "7"
    await stack.until(lambda: bool(stack.calls))
    assert (stack.calls[0].state, stack.calls[0].error.status) == (CompletionState.FAILED, 429)  # type: ignore[union-attr]


@pytest.mark.parametrize("engine_status", [500, 503])
async def test_server_errors(stack: Stack, sdk: Driver, stream: bool, engine_status: int) -> None:
    """An engine that fails is a 500, one that is away the API's word for overloaded, with a time to come back."""
    stack.engine.status = engine_status
    status = 500 if engine_status == 500 else sdk.overloaded_status
    error = await refused(stack, sdk, stream, status)
    assert (sdk.retry_after_of(error) is not None) == (engine_status == 503)


async def test_a_full_context(stack: Stack, sdk: Driver, stream: bool) -> None:
    """The vendor's own error, by whose words clients compact."""
    stack.engine.context_length = 10
    await stack.proxy.engines.remove("*", stack.engine.url)
    stack.proxy.engines.add("*", stack.engine.url, "sglang")
    error = await refused(stack, sdk, stream, 400, retries=2)
    words = {
        "openai_chat": "context_length_exceeded",
        "openai_responses": "context_length_exceeded",
        "anthropic": "prompt is too long",
        "google": "exceeds the maximum number of tokens",
    }
    assert (
        words[sdk.dialect] in f"{error} {getattr(error, 'code', '')}"
    )  # newer releases show the code beside the message only
    assert not stack.engine.requests


@pytest.mark.parametrize("failures", [[429], [503, 500], [500, 500, 500]])
async def test_the_sdks_own_retries(stack: Stack, sdk: Driver, stream: bool, failures: list[int]) -> None:
    """Each try is one generation and one record; with two retries three failures are the end."""
    stack.engine.failures, stack.engine.headers = list(failures), {"retry-after": "1"}
    async with sdk.client(stack, retries=2) as client:
        if len(failures) > 2:
            with pytest.raises(sdk.errors[500]):
                await sdk.ask(client, sdk.user("Hi"), stream=stream)
        else:
            assert (await sdk.ask(client, sdk.user("Hi"), stream=stream)).text == "Hello there."
    tries = min(3, len(failures) + 1)
    await stack.until(lambda: len(stack.calls) == tries)
    assert len(stack.engine.requests) == tries
    states = [record.state for record in stack.calls]
    assert states[: len(failures)] == [CompletionState.FAILED] * len(failures)


async def test_an_error_inside_a_stream(stack: Stack, sdk: Driver) -> None:
    """A break after the first words is an exception of the SDK, never an answer, and never a silent second call."""
    stack.engine.drop_at = 6
    async with sdk.client(stack, retries=2) as client:
        with pytest.raises(sdk.stream_error):
            await sdk.ask(client, sdk.user("Hi"), stream=True)
    await stack.until(lambda: bool(stack.calls))
    assert len(stack.engine.requests) == 1
    assert stack.calls[0].state is CompletionState.FAILED
