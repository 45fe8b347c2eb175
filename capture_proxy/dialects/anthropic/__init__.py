"""Anthropic Messages: `POST /v1/messages`, whole and streamed, and `/v1/messages/count_tokens`."""

from __future__ import annotations

from capture_proxy.dialects.anthropic.errors import encode_error
from capture_proxy.dialects.anthropic.request import parse_request
from capture_proxy.dialects.anthropic.response import encode_count, encode_model, encode_models, encode_whole
from capture_proxy.dialects.anthropic.stream import MessagesStreamEncoder
from capture_proxy.dialects.base import Dialect
from capture_proxy.dialects.sse import STREAM_HEADERS

DIALECT = Dialect(
    name="anthropic",
    parse_request=parse_request,
    parse_count=parse_request,
    stream_encoder=MessagesStreamEncoder,
    encode_whole=encode_whole,
    encode_error=encode_error,
    encode_count=encode_count,
    encode_model=encode_model,
    encode_models=encode_models,
    stream_headers=STREAM_HEADERS,
    request_id_header="request-id",
)

__all__ = ["DIALECT"]
