"""OpenAI Responses: `POST /v1/responses`, whole and streamed, and `/v1/responses/input_tokens`."""

from __future__ import annotations

from capture_proxy.dialects.base import Dialect
from capture_proxy.dialects.openai_chat.response import encode_model, encode_models
from capture_proxy.dialects.openai_responses.errors import encode_error
from capture_proxy.dialects.openai_responses.request import parse_request
from capture_proxy.dialects.openai_responses.response import encode_count, encode_whole
from capture_proxy.dialects.openai_responses.stream import ResponsesStreamEncoder
from capture_proxy.dialects.sse import STREAM_HEADERS

DIALECT = Dialect(
    name="openai_responses",
    parse_request=parse_request,
    parse_count=parse_request,
    stream_encoder=ResponsesStreamEncoder,
    encode_whole=encode_whole,
    encode_error=encode_error,
    encode_count=encode_count,
    encode_model=encode_model,
    encode_models=encode_models,
    stream_headers=STREAM_HEADERS,
    request_id_header="x-request-id",
)

__all__ = ["DIALECT"]
