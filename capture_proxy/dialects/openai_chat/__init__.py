"""OpenAI Chat Completions: `POST /v1/chat/completions`, whole and streamed."""

from __future__ import annotations

from capture_proxy.dialects.base import Dialect
from capture_proxy.dialects.openai_chat.errors import encode_error
from capture_proxy.dialects.openai_chat.request import parse_request
from capture_proxy.dialects.openai_chat.response import encode_count, encode_model, encode_models, encode_whole
from capture_proxy.dialects.openai_chat.stream import ChatStreamEncoder
from capture_proxy.dialects.sse import STREAM_HEADERS

DIALECT = Dialect(
    name="openai_chat",
    parse_request=parse_request,
    parse_count=parse_request,
    stream_encoder=ChatStreamEncoder,
    encode_whole=encode_whole,
    encode_error=encode_error,
    encode_count=encode_count,
    encode_model=encode_model,
    encode_models=encode_models,
    stream_headers=STREAM_HEADERS,
    request_id_header="x-request-id",
)

__all__ = ["DIALECT"]
