"""What the session asks of the node."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

import grpc

from horchestra.apimachinery.desired import DesiredState, LogRequest
from proto import node_pb2 as pb

EOF = grpc.aio.EOF  # type: ignore[attr-defined]  # missing from the stubs


class Runtime(Protocol):
    """What the session asks of the node: `agent.node.NodeRuntime`, and a stand-in where a test has no systemd."""

    async def apply(self, desired: DesiredState, lineage: str, revision: int, digest: str) -> None: ...
    async def preview(self, desired: DesiredState) -> str: ...
    def snapshot(self) -> list[pb.ApplicationReport]: ...
    def changes(self) -> AsyncIterator[pb.AgentMessage]: ...
    def logs(self, request: LogRequest) -> AsyncGenerator[bytes, None]: ...
