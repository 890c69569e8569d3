"""Runs the node's runtime inside a test node without a controller: desired states come as files, reports go to files.

/control/desired.json   {"lineage", "revision", "desired"}: applied whenever it is replaced
/control/reports.json   every application's report, written at each change
/control/messages.jsonl events, acknowledgements and node reports in order
/control/logs/N.json    a LogRequest; its lines go to N.out, the end to N.end; removing N.json closes the stream
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict

from agent.errors import AgentError
from agent.images.registry import RegistryConfig, RegistryMirror
from agent.node import NodeConfig, NodeRuntime
from horchestra.apimachinery.desired import DesiredState, LogRequest

CONTROL = Path("/control")
_TICK = 0.02


def replace(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)


def reports(runtime: NodeRuntime) -> str:
    found: list[dict[str, Any]] = []
    for report in runtime.snapshot():
        found.append({**MessageToDict(report), "statusJson": "", "status": json.loads(report.status_json)})
    return json.dumps(found)


async def apply_files(runtime: NodeRuntime) -> None:
    seen = 0
    path = CONTROL / "desired.json"
    while True:
        with contextlib.suppress(FileNotFoundError):
            if (now := path.stat().st_mtime_ns) != seen:
                seen = now
                value = json.loads(path.read_text())
                body = json.dumps(value["desired"]).encode()
                desired = DesiredState.model_validate(value["desired"])
                await runtime.apply(desired, value["lineage"], value["revision"], hashlib.sha256(body).hexdigest())
                replace(CONTROL / "applied", str(value["revision"]))
        await asyncio.sleep(_TICK)


async def write_reports(runtime: NodeRuntime) -> None:
    with (CONTROL / "messages.jsonl").open("a") as file:
        async for message in runtime.changes():
            if message.WhichOneof("body") != "status":
                file.write(json.dumps(MessageToDict(message)) + "\n")
                file.flush()
            replace(CONTROL / "reports.json", reports(runtime))


async def serve_logs(runtime: NodeRuntime) -> None:
    streams: dict[Path, asyncio.Task[None]] = {}
    (CONTROL / "logs").mkdir(exist_ok=True)
    async with asyncio.TaskGroup() as tasks:
        while True:
            asked = set((CONTROL / "logs").glob("*.json"))
            for path in asked - set(streams):
                streams[path] = tasks.create_task(stream(runtime, path))
            for path in set(streams) - asked:
                streams.pop(path).cancel()
            await asyncio.sleep(_TICK)


async def stream(runtime: NodeRuntime, path: Path) -> None:
    end = ""
    try:
        with path.with_suffix(".out").open("wb", buffering=0) as file:
            async with contextlib.aclosing(runtime.logs(LogRequest.model_validate_json(path.read_text()))) as lines:
                async for data in lines:
                    file.write(data)
    except AgentError as error:
        end = str(error)
    finally:
        replace(path.with_suffix(".end"), end)


async def main() -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    registry = RegistryConfig(mirrors=(RegistryMirror("docker.io", f"http://{sys.argv[1]}"),))
    runtime = NodeRuntime(NodeConfig(node=sys.argv[2], registry=registry))
    await runtime.start()
    replace(CONTROL / "reports.json", reports(runtime))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(runtime.run())
        tasks.create_task(apply_files(runtime))
        tasks.create_task(write_reports(runtime))
        tasks.create_task(serve_logs(runtime))


asyncio.run(main())
