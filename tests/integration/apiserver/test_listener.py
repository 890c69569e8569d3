"""HTTP/1.1 over TLS as hostile and unlucky clients speak it."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from horchestra.apiserver.exchange import Receive, Scope, Send
from horchestra.apiserver.listener import Limits

from .conftest import Serve
from .wire import Certificates, Wire


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the path and the length of the body."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return
        body += message["body"]
        if not message["more_body"]:
            break
    text = f"{scope['method']} {scope['path']} {len(body)}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": text})


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers without reading the body."""
    await send({"type": "http.response.start", "status": 403, "headers": []})
    await send({"type": "http.response.body", "body": b"no"})


@pytest.fixture
def plain(certificates: Certificates) -> ssl.SSLContext:
    return certificates.client_context()


async def test_a_connection_is_kept_for_further_requests(serving: Serve, plain: ssl.SSLContext) -> None:
    wire = await Wire.connect((await serving(echo)).port, plain)
    for number in range(3):
        assert (await wire.ask("POST", f"/{number}", b"x" * number)).body == f"POST /{number} {number}".encode()
    await wire.close()


async def test_pipelined_requests_are_answered_in_order(serving: Serve, plain: ssl.SSLContext) -> None:
    wire = await Wire.connect((await serving(echo)).port, plain)
    for number in range(20):
        wire.request("POST", f"/{number}", b"x" * number)
    assert [(await wire.answer()).body for _ in range(20)] == [f"POST /{n} {n}".encode() for n in range(20)]
    await wire.close()


async def test_more_pipelined_requests_than_the_limit_are_refused(serving: Serve, plain: ssl.SSLContext) -> None:
    wire = await Wire.connect((await serving(echo, Limits(pipelined=3))).port, plain)
    wire.send(b"".join(b"GET /%d HTTP/1.1\r\nHost: x\r\n\r\n" % n for n in range(10)))
    answers = [(await wire.answer()).code for _ in range(5)]
    assert answers == [200, 200, 200, 200, 400]
    assert await wire.reader.read() == b""


async def test_a_chunked_body_arrives_whole(serving: Serve, plain: ssl.SSLContext) -> None:
    wire = await Wire.connect((await serving(echo)).port, plain)
    wire.send(b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(100):
        wire.send(b"1000\r\n" + b"a" * 4096 + b"\r\n")
    wire.send(b"0\r\n\r\n")
    assert (await wire.answer()).body == b"POST /c 409600"
    await wire.close()


@pytest.mark.parametrize("headers", [[b"X: " + b"a" * 80_000], [b"X-%d: " % n + b"a" * 900 for n in range(100)]])
async def test_headers_over_72_kib_get_431(serving: Serve, plain: ssl.SSLContext, headers: list[bytes]) -> None:
    wire = await Wire.connect((await serving(echo)).port, plain)
    wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n" + b"\r\n".join(headers) + b"\r\n\r\n")
    answer = await wire.answer()
    assert (answer.code, answer.json()["kind"]) == (431, "Status")
    assert await wire.reader.read() == b""


async def test_headers_of_70_kib_are_accepted(serving: Serve, plain: ssl.SSLContext) -> None:
    wire = await Wire.connect((await serving(echo)).port, plain)
    assert (await wire.ask("GET", "/", Authorization="Negotiate " + "a" * 70_000)).code == 200
    await wire.close()


async def test_headers_count_once_in_whatever_pieces_they_come(serving: Serve, plain: ssl.SSLContext) -> None:
    wire = await Wire.connect((await serving(echo)).port, plain)
    wire.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 70000\r\n\r\n" + b"a" * 69_000)
    await wire.writer.drain()
    wire.send(b"a" * 1000 + b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Negotiate ")
    for _ in range(14):
        wire.send(b"a" * 5000)
        await asyncio.sleep(0.005)
    wire.send(b"\r\n\r\n")
    assert [(await wire.answer()).code for _ in range(2)] == [200, 200]
    wire.send(b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Negotiate ")
    for _ in range(16):
        wire.send(b"a" * 5000)
        await asyncio.sleep(0.005)
    assert (await wire.answer()).code == 431
    await wire.close()


@pytest.mark.parametrize(
    "rest",
    [
        b"Transfer-Encoding: gzip\r\n\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n{}",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}XX0\r\n\r\n",
    ],
)
@pytest.mark.parametrize("ahead", [0, 2])
async def test_a_body_that_cannot_be_read_gets_400(
    serving: Serve, plain: ssl.SSLContext, rest: bytes, ahead: int
) -> None:
    wire = await Wire.connect((await serving(echo)).port, plain)
    wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * ahead + b"POST / HTTP/1.1\r\nHost: x\r\n" + rest)
    assert [(await wire.answer()).code for _ in range(ahead + 1)] == [200] * ahead + [400]
    assert await wire.reader.read() == b""


@pytest.mark.parametrize(("hosts", "code"), [(b"", 400), (b"Host: a\r\n", 200), (b"Host: a\r\nHost: b\r\n", 400)])
async def test_a_request_has_one_host(serving: Serve, plain: ssl.SSLContext, hosts: bytes, code: int) -> None:
    wire = await Wire.connect((await serving(echo)).port, plain)
    wire.send(b"GET / HTTP/1.1\r\n" + hosts + b"\r\n")
    assert (await wire.answer()).code == code
    await wire.close()


async def test_trailers_are_dropped_and_bounded(serving: Serve, plain: ssl.SSLContext) -> None:
    seen: list[bytes] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await echo(scope, receive, send)
        seen.extend(name for name, _ in scope["headers"])

    wire = await Wire.connect((await serving(app)).port, plain)
    start = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    wire.send(start + b"X-Late: 1\r\n\r\n")
    assert (await wire.answer()).code == 200
    assert b"x-late" not in seen
    wire.send(start + b"X-Late: 1\r\n" * 20_000)
    assert (await wire.answer()).code == 431
    await wire.close()


async def test_what_is_not_http_gets_400(serving: Serve, plain: ssl.SSLContext) -> None:
    wire = await Wire.connect((await serving(echo)).port, plain)
    wire.send(b"\x16\x03\x01 hello\r\n\r\n")
    assert (await wire.answer()).code == 400
    assert await wire.reader.read() == b""


async def test_a_refusal_reaches_a_client_that_is_still_sending(serving: Serve, plain: ssl.SSLContext) -> None:
    wire = await Wire.connect((await serving(refuse)).port, plain)
    wire.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 20000000\r\n\r\n")
    for _ in range(200):
        wire.send(b"a" * 100_000)
        await asyncio.sleep(0)
    answer = await wire.answer()
    assert (answer.code, answer.header("connection"), answer.body) == (403, "close", b"no")
    await wire.close()


async def test_a_client_that_asks_first_is_told_to_continue(serving: Serve, plain: ssl.SSLContext) -> None:
    wire = await Wire.connect((await serving(echo)).port, plain)
    wire.send(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    assert (await wire.head()).code == 100
    wire.send(b"abc")
    assert (await wire.answer()).body == b"POST / 3"
    await wire.close()


async def test_a_refused_client_that_asks_first_is_not_told_to_continue(serving: Serve, plain: ssl.SSLContext) -> None:
    wire = await Wire.connect((await serving(refuse)).port, plain)
    wire.send(b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
    assert (await wire.answer()).code == 403
    await wire.close()


async def test_an_upgrade_is_answered_as_a_plain_request_and_closed(serving: Serve, plain: ssl.SSLContext) -> None:
    wire = await Wire.connect((await serving(echo)).port, plain)
    wire.send(b"GET /up HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nrest")
    answer = await wire.answer()
    assert (answer.code, answer.body, answer.header("connection")) == (200, b"GET /up 0", "close")
    assert await wire.reader.read() == b""


async def test_head_has_no_body(serving: Serve, plain: ssl.SSLContext) -> None:
    wire = await Wire.connect((await serving(echo)).port, plain)
    wire.request("HEAD", "/h")
    assert (await wire.head()).header("content-length") == "9"
    assert (await wire.ask("GET", "/g")).body == b"GET /g 0"
    await wire.close()


async def test_the_application_learns_of_a_client_that_left(serving: Serve, plain: ssl.SSLContext) -> None:
    left = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    wire = await Wire.connect((await serving(app)).port, plain)
    wire.request("GET", "/")
    await wire.head()
    assert await wire.chunk() == b"x"
    await wire.close()
    await asyncio.wait_for(left.wait(), 2)


async def test_a_slow_reader_holds_the_application_back(serving: Serve, plain: ssl.SSLContext) -> None:
    sent = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(2000):
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            sent += 65536
        await send({"type": "http.response.body", "body": b""})

    wire = await Wire.connect((await serving(app)).port, plain)
    wire.request("GET", "/")
    await wire.head()
    before = -1
    while sent != before:
        before = sent
        await asyncio.sleep(0.2)
    assert sent < 20_000_000
    total = 0
    while chunk := await wire.chunk():
        total += len(chunk)
    assert total == 2000 * 65536
    await wire.close()


async def test_an_answer_that_breaks_off_does_not_look_complete(serving: Serve, plain: ssl.SSLContext) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        raise ConnectionAbortedError

    wire = await Wire.connect((await serving(app)).port, plain)
    wire.request("GET", "/")
    await wire.head()
    assert await wire.chunk() == b"half"
    assert await wire.reader.read() == b""


LIMITS = Limits(header_time=0.3, idle_time=0.3, body_time=0.3)


@pytest.mark.parametrize(
    "start", [b"", b"GET / HTTP/1.1\r\nHost", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nab"]
)
async def test_a_client_that_goes_silent_is_disconnected(serving: Serve, plain: ssl.SSLContext, start: bytes) -> None:
    wire = await Wire.connect((await serving(echo, LIMITS)).port, plain)
    wire.send(start)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(wire.reader.readexactly(1), 4)


async def test_an_answer_under_way_is_not_idle(serving: Serve, plain: ssl.SSLContext) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(2.5)
        await echo(scope, receive, send)

    wire = await Wire.connect((await serving(app, LIMITS)).port, plain)
    assert (await wire.ask("GET", "/slow")).code == 200
    await wire.close()


async def _scope_of(serving: Serve, context: ssl.SSLContext) -> dict[str, Any]:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["extensions"]["tls"])
        await echo(scope, receive, send)

    wire = await Wire.connect((await serving(app)).port, context)
    await wire.ask("GET", "/")
    await wire.close()
    found: dict[str, Any] = seen[0]
    return found


async def test_the_scope_has_the_client_certificate(serving: Serve, certificates: Certificates) -> None:
    files = certificates.client("alice", ["team"])
    found = await _scope_of(serving, certificates.client_context(files))
    assert found["client_cert_der"] == ssl.PEM_cert_to_DER_cert(files[0].read_text())
    assert found["client_cert_chain"] == (ssl.DER_cert_to_PEM_cert(found["client_cert_der"]),)


async def test_without_a_certificate_the_scope_says_so(serving: Serve, plain: ssl.SSLContext) -> None:
    found = await _scope_of(serving, plain)
    assert (found["client_cert_der"], found["client_cert_chain"]) == (None, ())


async def test_a_certificate_of_another_ca_is_refused(
    serving: Serve, certificates: Certificates, tmp_path: Path
) -> None:
    stranger = Certificates.make(tmp_path).client("mallory", ["system:masters"])
    context = certificates.client_context(stranger)
    port = (await serving(echo)).port

    async def knock() -> None:
        # In TLS 1.3 the client's handshake ends before the server has looked at its certificate.
        await (await Wire.connect(port, context)).ask("GET", "/")

    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await knock()


async def test_tls_1_2_is_not_spoken(serving: Serve, plain: ssl.SSLContext) -> None:
    plain.maximum_version = ssl.TLSVersion.TLSv1_2
    port = (await serving(echo)).port
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await Wire.connect(port, plain)


async def test_a_session_cannot_be_resumed(serving: Serve, certificates: Certificates) -> None:
    context = certificates.client_context(certificates.client("alice", []))
    wire = await Wire.connect((await serving(echo)).port, context)
    await wire.ask("GET", "/")
    session = wire.writer.get_extra_info("ssl_object").session
    assert session is None or not session.has_ticket
    await wire.close()


async def test_closing_waits_for_answers_and_drops_idle_connections(serving: Serve, plain: ssl.SSLContext) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        await release.wait()
        await echo(scope, receive, send)

    listener = await serving(app, replace(Limits(), idle_time=30))
    busy, idle = await Wire.connect(listener.port, plain), await Wire.connect(listener.port, plain)
    busy.request("GET", "/busy")
    await begun.wait()
    listener.close()
    assert await asyncio.wait_for(idle.reader.read(), 5) == b""
    release.set()
    answer = await busy.answer()
    assert (answer.code, answer.header("connection")) == (200, "close")
    await listener.wait_closed(grace=1)
    with pytest.raises(OSError):
        await Wire.connect(listener.port, plain)


async def test_requests_may_arrive_in_any_pieces(serving: Serve, plain: ssl.SSLContext) -> None:
    port = (await serving(echo)).port
    chunked = b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    data = (
        b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc" + chunked + b"GET /g HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    for size in (1, 2, 3, 7, 50, len(data)):
        wire = await Wire.connect(port, plain)
        for start in range(0, len(data), size):
            wire.send(data[start : start + size])
            await asyncio.sleep(0)
        assert [(await wire.answer()).body for _ in range(3)] == [b"POST /a 3", b"POST /c 5", b"GET /g 0"]
        await wire.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET  / HTTP/1.1\r\nHost x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x00" * 5000,
        b"GET / HTTP/1.1\r\nHost: x\r\nA: b\nC: d\r\n e\r\n\r\n",
    ],
)
async def test_nonsense_ends_its_connection_and_no_other(serving: Serve, plain: ssl.SSLContext, data: bytes) -> None:
    port = (await serving(echo)).port
    bystander, wire = await Wire.connect(port, plain), await Wire.connect(port, plain)
    wire.send(data)
    try:
        got = await asyncio.wait_for(wire.reader.read(), 5)
    except ConnectionResetError:
        got = b""
    assert got == b"" or b"400" in got.split(b"\r\n")[0]
    assert (await bystander.ask("GET", "/")).code == 200
    await bystander.close()
