"""What every dialect offers: pure functions between bytes and the values of `capture_proxy.reply`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from capture_proxy.reply import ChatRequest, ProxyError, Reply, ReplyEvent

Operation: TypeAlias = Literal["generate", "count_tokens", "list_models", "probe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a request goes: its dialect and operation, the path without the secret's segment, and the secret, if any.

    The path is without its query, but for what its dialect reads of it; never with a key.
    """

    dialect: str
    operation: Operation
    path: str
    secret: str | None
    model: str | None = None


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model offered by the listing endpoints. `created_at` is UTC epoch ms."""

    id: str
    context_length: int | None = None
    created_at: int = 0


class StreamEncoder(Protocol):
    """Turns the events of one reply into the bytes of one response body. Stateful; one per call."""

    def encode(self, event: ReplyEvent) -> bytes:
        """The bytes that this event adds to the stream; may be empty. After Finished or Failed nothing more comes out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One vendor API as data: how to read its requests and write its answers."""

    name: str
    parse_request: Callable[[str, Mapping[str, str], bytes], ChatRequest]
    """(path, headers, body) → request. Raises ProxyError(bad_request)."""
    parse_count: Callable[[str, Mapping[str, str], bytes], ChatRequest]
    """The same for a token-counting request, which needs no max_tokens."""
    stream_encoder: Callable[[ChatRequest], StreamEncoder]
    encode_whole: Callable[[Reply], bytes]
    """The JSON body of a non-streaming answer."""
    encode_error: Callable[[ProxyError], tuple[int, dict[str, str], bytes]]
    """(status, headers, body) in the vendor's shape."""
    encode_count: Callable[[int], bytes]
    encode_model: Callable[[ModelEntry], bytes]
    encode_models: Callable[[Sequence[ModelEntry]], bytes]
    stream_headers: Mapping[str, str]
    stream_headers_of: Callable[[ChatRequest], Mapping[str, str]] | None = None
    """Where a client chooses the framing of its stream: the headers that go with the request's; `stream_headers` otherwise."""
    request_id_header: str = ""
    """How the vendor names each answer; '' where it doesn't. There are clients that ask again after a broken stream only if it had one."""
