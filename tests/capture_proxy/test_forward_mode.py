"""The forward listener: an unchanged vendor URL, the session by proxy credentials, and no way out but the listed ones."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web

from capture_proxy.authority import ensure_authority
from schemas.records import CompletionState, Heartbeat
from tests.capture_proxy.conftest import Stack
from tests.capture_proxy.wire import WIRES, Wire

MakeStack = Callable[..., Awaitable[Stack]]
CHAT, MESSAGES = WIRES[0], WIRES[1]
ANTHROPIC, OPENAI = "https://api.anthropic.com/v1/messages", "https://api.openai.com/v1/chat/completions"


@pytest.fixture(scope="session")
def authority_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One authority for all tests: a key takes a moment to make."""
    return tmp_path_factory.mktemp("authority") / "ca"


@pytest.fixture
async def stack(make_stack: MakeStack, authority_dir: Path) -> Stack:
    """A proxy with a forward listener and an open lease."""
    made = await make_stack(forward_port=0, authority_dir=authority_dir)
    await made.open()
    return made


def proxy_url(stack: Stack, secret: str | None = None) -> str:
    host = stack.proxy.forward_address.removeprefix("http://")
    return f"http://{secret or stack.secret}:x@{host}" if secret != "" else f"http://{host}"


class Http2First(ssl.SSLContext):
    """Offers HTTP/2 before HTTP/1.1, as most clients do that know both; httpx has it the other way round."""

    def set_alpn_protocols(self, alpn_protocols: Any) -> None:
        super().set_alpn_protocols(sorted(alpn_protocols))


def trust(stack: Stack) -> ssl.SSLContext:
    """What a strict client checks: Python 3.13 does so by default."""
    context = Http2First(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=stack.proxy.presence.authority_pem)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


@asynccontextmanager
async def client(stack: Stack, secret: str | None = None, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """An ordinary HTTP client that goes through the forward listener and trusts its authority."""
    async with httpx.AsyncClient(
        proxy=proxy_url(stack, secret), verify=trust(stack), trust_env=False, timeout=10.0, **options
    ) as made:
        yield made


async def connect(stack: Stack, target: str, secret: str | None = None) -> tuple[int, bytes]:
    """A bare CONNECT: its status and what came with it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.proxy.listener.forward_port)
    credentials = base64.b64encode(f"{secret or stack.secret}:x".encode()).decode()
    line = f"proxy-authorization: Basic {credentials}\r\n" if secret != "" else ""
    writer.write(f"CONNECT {target} HTTP/1.1\r\nhost: {target}\r\n{line}\r\n".encode())
    async with asyncio.timeout(5.0):
        answer = await reader.readuntil(b"\r\n\r\n")
        body = await reader.read(2000) if b" 200 " not in answer.split(b"\r\n")[0] else b""
    writer.close()
    return int(answer.split(b" ", 2)[1]), answer + body


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that this process asks for: a vendor's would mean that it is about to be contacted."""
    seen: list[str] = []
    original = asyncio.BaseEventLoop.getaddrinfo

    async def watched(self: Any, host: Any, *args: Any, **options: Any) -> Any:
        seen.append(str(host))
        return await original(self, host, *args, **options)

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", watched)
    return seen


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize(("wire", "url"), [(CHAT, OPENAI), (MESSAGES, ANTHROPIC)], ids=["openai", "anthropic"])
async def test_t71_a_hard_coded_vendor_url_is_captured(
    stack: Stack, wire: Wire, url: str, stream: bool, lookups: list[str]
) -> None:
    """The call is answered, recorded under the lease of the proxy credentials, and the vendor never contacted."""
    async with client(stack) as http:
        answer = await http.post(url, json=wire.request(stream=stream), headers=wire.headers("the-vendors-own-key"))
    assert answer.status_code == 200
    said = wire.read_stream(answer.text) if stream else wire.read_whole(answer.json())
    assert (said.text, said.is_over) == ("Hello there.", True)
    await stack.until(lambda: bool(stack.deliveries))
    [call] = stack.calls
    assert (call.session_id, call.state, str(call.dialect)) == ("session-1", CompletionState.FINISHED, wire.name)
    assert stack.deliveries[0].delivered
    assert not {"api.openai.com", "api.anthropic.com"} & set(lookups)
    assert "upstream_prevented" not in stack.proxy.recorder.counts


async def test_t71_telemetry_and_unknown_hosts_are_refused_and_told(stack: Stack, lookups: list[str]) -> None:
    """403 before any name is looked up; a rejection names the host, and of the secret only the hash."""
    for target, reason in (("http-intake.logs.datadoghq.com", "telemetry_host"), ("evil.test", "unknown_host")):
        status, answer = await connect(stack, f"{target}:443")
        assert status == 403
        assert target.encode() in answer
        await stack.until(lambda reason=reason: any(r.reason == reason for r in stack.rejections))  # type: ignore[misc]
        [told] = [r for r in stack.rejections if r.reason == reason]
        assert (told.host, told.method, told.status) == (target, "CONNECT", 403)
        assert target not in lookups
    assert all(stack.secret.encode() not in d.value for d in stack.bus.records("capture.rejections"))


@pytest.mark.parametrize("target", ["127.0.0.1:{tap}", "127.0.0.1:{admin}", "localhost:{engine}", "169.254.169.254:80"])
async def test_t71_no_address_of_ours_can_be_reached(stack: Stack, target: str) -> None:
    """Neither the tap, nor the admin listener, nor the engine, nor a cloud's metadata."""
    ports = {"tap": stack.proxy.tap.port, "admin": stack.proxy.admin.port, "engine": stack.engine.url.rsplit(":")[-1]}
    status, _ = await connect(stack, target.format(**ports))
    assert status == 403


async def test_t71_a_listed_mirror_is_let_through_undecrypted(make_stack: MakeStack, authority_dir: Path) -> None:
    """The bytes of both sides arrive as they were sent, with no certificate of ours in between; only with an open lease."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"mirror:" + await reader.readexactly(9))
        await writer.drain()
        writer.close()

    mirror = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = mirror.sockets[0].getsockname()[1]
    stack = await make_stack(
        forward_port=0, authority_dir=authority_dir, forward_pass_through=(f"localhost:{port}", "pypi.example")
    )
    await stack.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.proxy.listener.forward_port)
    credentials = base64.b64encode(f"{stack.secret}:x".encode()).decode()
    writer.write(f"CONNECT localhost:{port} HTTP/1.1\r\nproxy-authorization: Basic {credentials}\r\n\r\n".encode())
    async with asyncio.timeout(5.0):
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"\x16\x03\x01 hello")  # as a TLS record begins: it isn't taken apart
        assert await reader.read() == b"mirror:\x16\x03\x01 hello"
    writer.close()
    assert stack.proxy.recorder.counts["passed_through"] == 1
    for secret, expected in (("", 407), ("not-a-secret", 403)):
        assert (await connect(stack, f"localhost:{port}", secret))[0] == expected
    assert (await connect(stack, f"localhost:{port + 1}"))[0] == 403
    mirror.close()
    await mirror.wait_closed()


async def test_without_our_authority_a_client_refuses(stack: Stack) -> None:
    """A client that doesn't trust it fails visibly; nothing is bypassed."""
    async with httpx.AsyncClient(proxy=proxy_url(stack), trust_env=False) as http:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await http.post(ANTHROPIC, json=MESSAGES.request())
    assert not stack.engine.requests


async def test_credentials_are_asked_for(stack: Stack) -> None:
    """A CONNECT without them is a 407 with a challenge, and a rejection."""
    status, answer = await connect(stack, "api.anthropic.com:443", "")
    assert status == 407
    assert b"proxy-authenticate: basic" in answer.lower()
    await stack.until(lambda: bool(stack.rejections))
    assert (stack.rejections[0].reason, stack.rejections[0].host) == ("no_secret", "api.anthropic.com")


async def test_t43_an_unknown_secret_is_the_vendors_own_401(stack: Stack) -> None:
    """Inside the tunnel, in the dialect's shape; the path can't bring another secret, nor can an API key."""
    headers = MESSAGES.headers(stack.secret)
    async with client(stack, "not-a-secret") as http:
        for url in (ANTHROPIC, f"https://api.anthropic.com/s/{stack.secret}/v1/messages"):
            answer = await http.post(url, json=MESSAGES.request(), headers=headers)
            assert answer.status_code == 401
            assert MESSAGES.error_of(answer.json())[0] == "authentication_error"
    await stack.until(lambda: len(stack.rejections) == 2)
    assert {(r.reason, r.session_id, r.host) for r in stack.rejections} == {("unknown_secret", "", "api.anthropic.com")}
    assert not stack.engine.requests


async def test_vendors_side_calls_get_a_fixed_answer(stack: Stack) -> None:
    """Settings, limits, telemetry, accounts: harmless, counted, never a record, a rejection or a connection."""
    calls = {
        "https://api.anthropic.com/api/claude_code/policy_limits": {"restrictions": {}},
        "https://api.anthropic.com/api/hello": {"message": "hello"},
        "https://api.anthropic.com/api/event_logging/batch": {},
        "https://chatgpt.com/backend-api/codex/models?client_version=1": {"models": []},
        "https://chatgpt.com/backend-api/wham/accounts/check": {},
    }
    async with client(stack) as http:
        for url, expected in calls.items():
            answer = await http.get(url)
            assert (answer.status_code, answer.json()) == (200, expected)
        assert (await http.get("https://api.anthropic.com/api/claude_code/settings")).status_code == 404
        unknown = await http.get("https://api.anthropic.com/v1/files")
    assert unknown.status_code == 404
    assert unknown.json()["type"] == "error"
    assert stack.proxy.recorder.counts["side_calls"] == len(calls) + 1
    await stack.until(lambda: bool(stack.rejections))
    assert [(r.reason, r.path) for r in stack.rejections] == [("unknown_endpoint", "/v1/files")]
    assert not stack.engine.requests


@pytest.mark.parametrize(
    "url",
    [
        "https://dashscope.aliyuncs.com/compatible-mode/v1/chat/completions",
        "https://openrouter.ai/api/v1/chat/completions",
        "https://api.z.ai/api/paas/v4/chat/completions",
        "https://API.OpenAI.com./v1/chat/completions",
        "http://api.openai.com/v1/chat/completions",
    ],
)
async def test_a_vendors_own_paths_lead_to_the_same_api(stack: Stack, url: str) -> None:
    """Whatever stands before the API in a vendor's URL, however its host is written, encrypted or not."""
    async with client(stack) as http:
        answer = await http.post(url, json=CHAT.request(stream=True))
    assert CHAT.read_stream(answer.text).text == "Hello there."


async def test_http2_carries_parallel_calls(stack: Stack) -> None:
    """Twelve calls at once on one connection: each has its own answer, none waits for another to end."""
    async with client(stack, http2=True) as http:
        await http.post(ANTHROPIC, json=MESSAGES.request())  # opens the connection
        stack.engine.pause_at = 3
        stack.engine.go.clear()
        asking = [
            asyncio.create_task(http.post(ANTHROPIC, json=MESSAGES.request(stream=i % 2 == 0))) for i in range(12)
        ]
        await stack.until(lambda: len(stack.engine.requests) == 13)
        stack.engine.go.set()
        answers = await asyncio.gather(*asking)
        assert [(a.status_code, a.http_version) for a in answers] == [(200, "HTTP/2")] * 12
        assert stack.proxy.listener.connections == 1
    await stack.until(lambda: len(stack.deliveries) == 13)
    assert all(d.delivered for d in stack.deliveries)


async def test_an_upgrade_to_websocket_is_a_426(stack: Stack) -> None:
    """The client goes on over HTTP at once."""
    upgrade = {"upgrade": "websocket", "connection": "Upgrade", "sec-websocket-version": "13", "sec-websocket-key": "x"}
    async with client(stack) as http:
        answer = await http.get("https://api.openai.com/v1/responses", headers=upgrade)
        assert answer.status_code == 426
        assert answer.json()["error"]["message"]
        assert (await http.post(OPENAI, json=CHAT.request())).status_code == 200
    async with stack.http.get(stack.url("/v1/responses"), headers=upgrade) as response:
        assert response.status == 426


async def test_a_client_that_leaves_the_tunnel_ends_its_call(stack: Stack) -> None:
    """As at the other listener: the engine's request is aborted, the record holds what was sampled."""
    stack.engine.pause_at = 6
    stack.engine.go.clear()
    async with client(stack) as http:
        asking = asyncio.create_task(http.post(ANTHROPIC, json=MESSAGES.request(stream=True)))
        await asyncio.wait_for(stack.engine.reached.wait(), 5.0)
        asking.cancel()
    await stack.until(lambda: bool(stack.engine.aborts and stack.calls and stack.deliveries))
    assert stack.calls[0].state is CompletionState.ABORTED
    assert not stack.deliveries[0].delivered


async def test_the_other_listener_takes_no_connect(stack: Stack) -> None:
    """A reverse proxy opens no tunnels."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.proxy.listener.port)
    writer.write(b"CONNECT api.anthropic.com:443 HTTP/1.1\r\nhost: api.anthropic.com\r\n\r\n")
    async with asyncio.timeout(5.0):
        status = await reader.readline()
    writer.close()
    assert b" 200 " not in status


async def test_its_address_and_authority_are_announced(stack: Stack) -> None:
    """Heartbeats bring all that a worker needs to send a harness through it."""
    await stack.until(lambda: bool(stack.records(Heartbeat, "rollout.nodes")))
    beat = stack.records(Heartbeat, "rollout.nodes")[-1]
    assert beat.details["forward"] == {
        "address": stack.proxy.forward_address,
        "ca_pem": stack.proxy.presence.authority_pem,
    }


async def test_without_a_port_there_is_none(make_stack: MakeStack) -> None:
    """Off by default: no listener, no authority, nothing announced."""
    stack = await make_stack()
    assert stack.proxy.forward_address == ""
    await stack.until(lambda: bool(stack.records(Heartbeat, "rollout.nodes")))
    assert "forward" not in stack.records(Heartbeat, "rollout.nodes")[-1].details
    assert not list(stack.root.rglob("*.pem"))


async def test_the_authority_is_made_once(tmp_path: Path) -> None:
    """Callers at one time agree on it; its key is for its owner alone."""
    directory = tmp_path / "state" / "ca"
    made = await asyncio.gather(*(asyncio.to_thread(ensure_authority, directory) for _ in range(4)))
    assert len(set(made)) == 1
    assert made[0].startswith("-----BEGIN CERTIFICATE-----")
    assert directory.stat().st_mode & 0o077 == 0
    assert ensure_authority(directory) == made[0]


async def test_node_goes_through_with_its_own_ca_variable(stack: Stack, tmp_path: Path) -> None:
    """`NODE_EXTRA_CA_CERTS` is enough for node's own TLS, tunnelled by hand as its HTTP clients do."""
    import shutil

    node = shutil.which("node")
    assert node, "node is needed for the harnesses"
    (tmp_path / "ca.pem").write_text(stack.proxy.presence.authority_pem)
    script = tmp_path / "call.mjs"
    credentials = base64.b64encode(f"{stack.secret}:x".encode()).decode()
    script.write_text(
        f"""
import http from 'node:http'; import https from 'node:https';
const tunnel = http.request({{host: '127.0.0.1', port: {stack.proxy.listener.forward_port}, method: 'CONNECT',
  path: 'api.anthropic.com:443', headers: {{'proxy-authorization': 'Basic {credentials}'}}}});
tunnel.on('connect', (_, socket) => {{
  const call = https.request({{host: 'api.anthropic.com', path: '/v1/messages', method: 'POST', socket, agent: false,
    headers: {{'content-type': 'application/json'}}}}, (answer) => {{
      let body = ''; answer.on('data', (d) => body += d); answer.on('end', () => {{ console.log(body); process.exit(0) }}) }});
  call.end({json.dumps(json.dumps(MESSAGES.request()))});
}});
tunnel.end();
"""
    )
    process = await asyncio.create_subprocess_exec(
        node,
        str(script),
        env={"NODE_EXTRA_CA_CERTS": str(tmp_path / "ca.pem"), "PATH": "/usr/bin:/bin"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(20.0):
        out, err = await process.communicate()
    assert process.returncode == 0, err
    assert MESSAGES.read_whole(json.loads(out)).text == "Hello there."


async def test_the_process_connects_to_its_tap_only(stack: Stack) -> None:
    """Were a request ever to leave the steps for another place, the connection would be refused at the last door."""
    reached = asyncio.Event()

    async def outside(_request: web.Request) -> web.Response:
        reached.set()
        return web.Response()

    runner = web.AppRunner(web.Application())
    runner.app.router.add_route("*", "/{any:.*}", outside)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]

    class Astray:
        def request(self, flow: Any) -> None:
            flow.request.scheme, flow.request.host, flow.request.port = "http", "127.0.0.1", port

    stack.proxy.listener._master.addons.add(Astray())
    async with client(stack) as http:
        answer = await http.post(ANTHROPIC, json=MESSAGES.request())
    assert answer.status_code == 502
    assert not reached.is_set()
    assert stack.proxy.recorder.counts["upstream_prevented"] >= 1
    await runner.cleanup()


PYTHON = """
import json, sys, urllib.request
request = urllib.request.Request("https://api.anthropic.com/v1/messages", sys.argv[1].encode(), {"content-type": "application/json"})
print(urllib.request.urlopen(request, timeout=10).read().decode())
"""


@pytest.mark.parametrize("trusts", [True, False], ids=["with_ca", "without"])
@pytest.mark.parametrize("program", ["python", "curl"])
async def test_t71_each_client_trusts_our_ca_or_fails_visibly(
    stack: Stack, tmp_path: Path, program: str, trusts: bool
) -> None:
    """With a launch plan's environment the call is captured; without the certificates it is refused, and goes nowhere else."""
    import shutil
    import sys

    import harnesses

    if program != "python" and not shutil.which(program):
        pytest.skip(f"{program} isn't here")
    proxy = harnesses.ForwardProxy(
        address=stack.proxy.forward_address, ca_pem=stack.proxy.presence.authority_pem.encode(), system_pem=b""
    )
    environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(tmp_path)}
    environment |= proxy.environment(stack.secret, str(tmp_path))
    if trusts:
        for path, content in proxy.files(str(tmp_path)).items():
            Path(path).parent.mkdir(exist_ok=True)
            Path(path).write_bytes(content)
    else:
        environment = {k: v for k, v in environment.items() if "CA" not in k and "CERT" not in k}
    body = json.dumps(MESSAGES.request())
    argv = {
        "python": [sys.executable, "-c", PYTHON, body],
        "curl": [
            "curl",
            "-sS",
            "https://api.anthropic.com/v1/messages",
            "-H",
            "content-type: application/json",
            "-d",
            body,
        ],
    }[program]
    process = await asyncio.create_subprocess_exec(
        *argv, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30.0):
        out, err = await process.communicate()
    if trusts:
        assert process.returncode == 0, err
        assert MESSAGES.read_whole(json.loads(out)).text == "Hello there."
    else:
        assert process.returncode != 0
        assert b"certificate" in err.lower()
        assert not stack.engine.requests
