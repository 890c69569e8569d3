"""A node's runtime without systemd: what it is told to run, runs."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from horchestra.apimachinery.desired import DesiredState, LogRequest
from proto import node_pb2 as pb


async def eventually(fact: Callable[[], Any], seconds: float = 10) -> Any:
    """Wait until `fact` holds; its value."""
    deadline = time.monotonic() + seconds
    while not (value := fact()):
        if time.monotonic() > deadline:
            raise AssertionError(f"never came true within {seconds} s")
        await asyncio.sleep(0.01)
    return value


class StandIn:
    def __init__(self) -> None:
        self.applied: list[tuple[DesiredState, str, int]] = []
        self.previews: list[DesiredState] = []
        self.running: dict[str, pb.ApplicationReport] = {}
        self.told: asyncio.Queue[pb.AgentMessage] = asyncio.Queue()
        self.log: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.logs_open = 0
        node = {
            "capacity": {"cpu": "4", "memory": "8Gi"},
            "allocatable": {"cpu": "4", "memory": "8Gi"},
            "addresses": [{"type": "InternalIP", "address": "10.0.0.5"}],
            "nodeInfo": {"kernelVersion": "6.1"},
        }
        self.told.put_nowait(pb.AgentMessage(node=pb.NodeReport(node_json=json.dumps(node).encode())))

    @property
    def desired(self) -> DesiredState:
        return self.applied[-1][0]

    @property
    def names(self) -> list[str]:
        return [a["metadata"]["name"] for a in self.desired.applications] if self.applied else []

    async def apply(self, desired: DesiredState, lineage: str, revision: int, digest: str) -> None:
        self.applied.append((desired, lineage, revision))
        for obj in desired.applications:
            meta = obj["metadata"]
            self.report(meta["name"], meta["uid"], "Running", meta["generation"], meta["namespace"])
        gone = [removal.uid for removal in desired.removals]
        for uid in gone:
            self.running.pop(uid, None)
        if gone:
            self.told.put_nowait(pb.AgentMessage(acknowledgement=pb.Acknowledgement(removed=gone)))

    def report(
        self, name: str, uid: str, phase: str, generation: int = 1, namespace: str = "default", **more: Any
    ) -> None:
        status = json.dumps({"phase": phase, **more}).encode()
        one = pb.ApplicationReport(
            namespace=namespace, name=name, uid=uid, generation=generation, invocation_id="i1", status_json=status
        )
        self.running[uid] = one
        self.told.put_nowait(pb.AgentMessage(status=pb.StatusReport(applications=[one])))

    async def preview(self, desired: DesiredState) -> str:
        self.previews.append(desired)
        return f"would run {len(desired.applications)} application(s) instead of {len(self.running)}"

    def snapshot(self) -> list[pb.ApplicationReport]:
        return list(self.running.values())

    async def changes(self) -> AsyncIterator[pb.AgentMessage]:
        while True:
            yield await self.told.get()

    async def logs(self, request: LogRequest) -> AsyncGenerator[bytes, None]:
        self.logs_open += 1
        try:
            while (chunk := await self.log.get()) is not None:
                yield chunk
        finally:
            self.logs_open -= 1
