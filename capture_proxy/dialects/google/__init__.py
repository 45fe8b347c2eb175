"""Google generateContent: `:generateContent`, `:streamGenerateContent` (events or a JSON array), `:countTokens`, and models."""

from __future__ import annotations

from capture_proxy.dialects.base import Dialect
from capture_proxy.dialects.google.errors import encode_error
from capture_proxy.dialects.google.request import parse_count, parse_request
from capture_proxy.dialects.google.response import encode_count, encode_model, encode_models, encode_whole
from capture_proxy.dialects.google.stream import GenerateStreamEncoder, stream_headers
from capture_proxy.dialects.sse import STREAM_HEADERS

DIALECT = Dialect(
    name="google",
    parse_request=parse_request,
    parse_count=parse_count,
    stream_encoder=GenerateStreamEncoder,
    encode_whole=encode_whole,
    encode_error=encode_error,
    encode_count=encode_count,
    encode_model=encode_model,
    encode_models=encode_models,
    stream_headers=STREAM_HEADERS,
    stream_headers_of=stream_headers,
)

__all__ = ["DIALECT"]
