"""The agents' door: gRPC over mutual TLS. The certificate's CN is the node, its O is `system:nodes`."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from horchestra.apimachinery.errors import StatusError
from horchestra.pki.nodes import NodeCertificate, NotANode, identify
from proto import node_pb2 as pb
from proto.node_pb2_grpc import NodeServicer, add_NodeServicer_to_server

from . import registration
from .bounds import cut
from .registration import Greeting
from .session import HEARTBEAT_SECONDS, Session
from .sessions import Sessions
from .streams import EOF

log = logging.getLogger("horchestra.nodes")

HELLO_SECONDS = 10
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
OPTIONS = [
    ("grpc.keepalive_time_ms", 5000),
    ("grpc.keepalive_timeout_ms", 4000),
    ("grpc.http2.ping_timeout_ms", 4000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 3000),
    ("grpc.http2.min_ping_interval_without_data_ms", 3000),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", 2048),
    ("grpc.so_reuseport", 0),
]


class NodeService(NodeServicer):
    """Both calls of `proto/node.proto`; all state is in Sessions."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    async def Session(self, request_iterator: Any, context: Any) -> None:
        certificate = await _identify(context)
        hello = await _hello(context)
        peer = _address(context.peer())
        with self._sessions.arriving(certificate.node):
            try:
                greeting = await registration.greet(self._sessions.store, certificate, hello, peer)
            except StatusError as error:
                await context.abort(grpc.StatusCode.UNAVAILABLE, error.message)
                return
            decision = greeting.decision
            if decision.verdict != pb.PROCEED:
                self._sessions.tell(certificate.node, decision.reason, decision.message)
            session = Session(self._sessions, certificate.node, hello, greeting, context, peer)
            await context.write(pb.ControllerMessage(welcome=_welcome(session.id, greeting)))
            if decision.verdict == pb.DUPLICATE:
                log.warning("node %s: %s (%s)", certificate.node, decision.message, peer)
                self._sessions.duplicate(certificate.node)
                return
            self._sessions.started(session)
        await session.run()

    async def Stream(self, request_iterator: Any, context: Any) -> None:
        certificate = await _identify(context)
        await self._sessions.streams.serve(certificate.node, context)


async def _identify(context: Any) -> NodeCertificate:
    pem = context.auth_context().get("x509_pem_cert", [b""])[0]
    try:
        return identify(pem)
    except (NotANode, ValueError) as error:
        log.warning("agents' door: %s refused: %s", _address(context.peer()), error)
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, f"this door is for nodes: {error}")
        raise AssertionError("abort raises") from error


async def _hello(context: Any) -> pb.Hello:
    try:
        async with asyncio.timeout(HELLO_SECONDS):
            first = await context.read()
    except TimeoutError:
        first = EOF
    if first is EOF or first.WhichOneof("body") != "hello" or not first.hello.machine_id:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a session begins with a hello that names the machine")
    hello: pb.Hello = first.hello
    return hello


def _welcome(session_id: str, greeting: Greeting) -> pb.Welcome:
    return pb.Welcome(
        session_id=session_id,
        lineage=greeting.lineage,
        revision=greeting.revision,
        verdict=greeting.decision.verdict,
        reason=greeting.decision.message,
        server_time_ms=int(time.time() * 1000),
        heartbeat_ms=int(HEARTBEAT_SECONDS * 1000),
    )


def _address(peer: str) -> str:
    """`ipv4:10.0.0.5:4711` as 10.0.0.5."""
    return cut(peer.partition(":")[2].rpartition(":")[0].strip("[]").replace("%5B", "").replace("%5D", ""), 64)


async def serve(
    sessions: Sessions, host: str, port: int, certificate: Callable[[], tuple[Path, Path, Path]]
) -> tuple[grpc.aio.Server, int]:
    """Start the door; returns the server and the port it listens on (for port 0). `certificate` gives the files of key,
    certificate and authority, and is asked again for each connection. Raises OSError when the address is taken."""

    def credentials() -> grpc.ServerCertificateConfiguration:
        key, chain, authority = (path.read_bytes() for path in certificate())
        return grpc.ssl_server_certificate_configuration([(key, chain)], root_certificates=authority)

    server = grpc.aio.server(options=OPTIONS)
    add_NodeServicer_to_server(  # type: ignore[no-untyped-call]
        NodeService(sessions), server
    )
    secure = grpc.dynamic_ssl_server_credentials(credentials(), credentials, require_client_authentication=True)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_secure_port(address, secure)
    except RuntimeError as error:
        raise OSError(f"cannot listen on {address}: {error}") from error
    await server.start()
    return server, bound
