"""What the suite asks of every SDK, said once; each API's module answers in its own words."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pydantic import BaseModel

from tests.capture_proxy.conftest import Stack

MODEL = "policy"

PNG = "iVBORw0KGgo="
"""The first bytes of a PNG, in base64."""

PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}


class Colours(BaseModel):
    """A structured answer."""

    names: list[str]


@dataclass(frozen=True)
class Call:
    """A tool call as the SDK parsed it."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """An answer as the SDK gives it; `raw` is its own object, which goes back into the history."""

    text: str
    reasoning: str
    calls: list[Call]
    finish: str
    prompt_tokens: int
    output_tokens: int
    raw: Any
    parsed: Any = None
    events: list[str] = field(default_factory=list)


class Driver(ABC):
    """One API of one SDK."""

    name: str
    dialect: str
    ends: ClassVar[dict[str, str]]
    """What the API says for: stop, length, tools."""
    errors: ClassVar[dict[int, type[Exception]]]
    """HTTP status as this API has it → the SDK's class."""
    overloaded_status = 503
    """The status for an engine that is away."""
    stream_error: type[Exception]
    """What the SDK raises for an error inside a stream."""

    @abstractmethod
    def client(self, stack: Stack, *, retries: int = 0, secret: str | None = None) -> AbstractAsyncContextManager[Any]:
        """A client of the proxy."""

    @abstractmethod
    def user(self, text: str, *, image: str | None = None) -> list[Any]:
        """A user turn, maybe with a PNG."""

    @abstractmethod
    def said(self, answer: Answer) -> list[Any]:
        """An answer as history."""

    @abstractmethod
    def results(self, answer: Answer, texts: Sequence[str]) -> list[Any]:
        """The results of an answer's calls, in order."""

    def nonsense(self) -> list[Any]:
        """Turns that the SDK sends and the API refuses."""
        return []

    @abstractmethod
    async def ask(
        self,
        client: Any,
        turns: list[Any],
        *,
        stream: bool,
        tools: bool = False,
        schema: type[BaseModel] | None = None,
        limit: int | None = None,
    ) -> Answer:
        """One call, whole or through the SDK's own stream reader."""

    async def count(self, client: Any, turns: list[Any]) -> int | None:
        """The prompt's tokens as the API counts them; None where it has no such endpoint."""
        del client, turns
        return None

    @abstractmethod
    async def models(self, client: Any) -> list[str]:
        """The ids of the listed models."""

    @abstractmethod
    async def missing(self, client: Any) -> Any:
        """Asks for an endpoint that doesn't exist."""

    def status_of(self, error: Any) -> int:
        """The HTTP status inside an exception."""
        return int(error.status_code)

    def retry_after_of(self, error: Any) -> str | None:
        """The header inside an exception."""
        found = error.response.headers.get("retry-after")
        return None if found is None else str(found)
