"""Byte streams that the controller asks for: each a call of its own, with its own flow control."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

import grpc
from pydantic import ValidationError

from horchestra.apimachinery.desired import LogRequest
from proto import node_pb2 as pb
from proto.node_pb2_grpc import NodeStub

from .errors import AgentError
from .runtime import EOF, Runtime

log = logging.getLogger("horchestra.session")

CHUNK_BYTES = 64 * 1024


async def serve(stub: NodeStub, runtime: Runtime, request: pb.OpenStream, room: asyncio.Semaphore) -> None:
    """Open the stream and send until its end, or until nobody reads it any more. Never fails."""
    call = stub.Stream()
    try:
        await call.write(pb.StreamMessage(stream_id=request.stream_id))
        if room.locked():
            await call.write(_error("TooManyRequests", "the node serves as many streams as it may; close one"))
            await _finish(call, asyncio.ensure_future(_until_closed(call)))
            return
        async with room:
            async with asyncio.TaskGroup() as tasks:
                closed = tasks.create_task(_until_closed(call))
                await _pump(call, runtime, request)
                await _finish(call, closed)
    except* (grpc.aio.AioRpcError, asyncio.InvalidStateError, _Closed):
        pass  # whoever read the stream went away
    finally:
        call.cancel()


async def _pump(call: Any, runtime: Runtime, request: pb.OpenStream) -> None:
    try:
        if request.kind != "logs":
            raise AgentError("BadRequest", f"this agent does not know streams of kind {request.kind!r}")
        source = runtime.logs(LogRequest.model_validate_json(request.request_json))
        async with contextlib.aclosing(source) as chunks:
            async for chunk in chunks:
                for start in range(0, len(chunk), CHUNK_BYTES):
                    await call.write(pb.StreamMessage(data=chunk[start : start + CHUNK_BYTES]))
        await call.write(pb.StreamMessage(end=True))
    except AgentError as error:
        await call.write(_error(error.reason, error.message))
    except ValidationError:
        await call.write(_error("BadRequest", "the request for the stream cannot be read"))
    except (OSError, ValueError, LookupError, TypeError):  # a fault here must not cut the node off
        log.exception("a stream of kind %s failed", request.kind)
        await call.write(_error("InternalError", "the node could not serve the stream; its journal says why"))


async def _finish(call: Any, closed: asyncio.Future[None]) -> None:
    """Let the other side read to the end before the call is cancelled."""
    await call.done_writing()
    await asyncio.wait([closed], timeout=30)
    closed.cancel()


class _Closed(Exception):
    """The other side has ended the stream."""


async def _until_closed(call: Any) -> None:
    while await call.read() is not EOF:
        pass
    raise _Closed


def _error(reason: str, message: str) -> pb.StreamMessage:
    return pb.StreamMessage(error=pb.StreamError(reason=reason, message=message))
