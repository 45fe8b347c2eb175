"""A model endpoint for tests of real CLIs: asks for one shell command, then says that it is done. Chat and Messages, streamed."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMAND = "echo made by a tool > made.txt"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: object) -> None:
        """Silence."""

    def do_POST(self) -> None:
        """One model call."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.calls.append({"path": self.path, "headers": dict(self.headers), "body": body})
        if self.server.status != 200:
            data = json.dumps({"error": {"message": "no luck today", "type": "invalid_request_error"}}).encode()
            self.send_response(self.server.status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for line in _chat(body) if "/chat/" in self.path else _messages(body):
            self.wfile.write(line)
        self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    calls: list[dict[str, Any]]
    status: int


def _chat(body: dict[str, Any]) -> Iterator[bytes]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        whole = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
        return b"data: " + json.dumps(whole).encode() + b"\n\n"

    if any(message["role"] == "tool" for message in body["messages"]):
        yield chunk({"role": "assistant", "content": "All done."})
        yield chunk({}, "stop")
    else:
        function = {"name": "bash", "arguments": json.dumps({"command": COMMAND})}
        yield chunk(
            {"role": "assistant", "tool_calls": [{"index": 0, "id": "t1", "type": "function", "function": function}]}
        )
        yield chunk({}, "tool_calls")
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    yield (
        b"data: "
        + json.dumps({"id": "c", "object": "chat.completion.chunk", "choices": [], "usage": usage}).encode()
        + b"\n\n"
    )
    yield b"data: [DONE]\n\n"


def _messages(body: dict[str, Any]) -> Iterator[bytes]:
    def event(kind: str, **fields: Any) -> bytes:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()

    def has_result(content: Any) -> bool:
        return isinstance(content, list) and any(block.get("type") == "tool_result" for block in content)

    usage = {"input_tokens": 10, "output_tokens": 1}
    message = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": []}
    yield event("message_start", message={**message, "stop_reason": None, "stop_sequence": None, "usage": usage})
    if any(has_result(message["content"]) for message in body["messages"]):
        block, delta, stop = {"type": "text", "text": ""}, {"type": "text_delta", "text": "All done."}, "end_turn"
    else:
        block = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}
        arguments = json.dumps({"command": COMMAND, "description": "make a file"})
        delta, stop = {"type": "input_json_delta", "partial_json": arguments}, "tool_use"
    yield event("content_block_start", index=0, content_block=block)
    yield event("content_block_delta", index=0, delta=delta)
    yield event("content_block_stop", index=0)
    yield event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage={"output_tokens": 5})
    yield event("message_stop")


@contextmanager
def scripted_model(status: int = 200) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The endpoint's address, and the calls that it gets."""
    server = _Server(("127.0.0.1", 0), _Handler)
    server.calls, server.status = [], status
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.calls
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
