"""An agent with a stand-in runtime as a process of its own; its argument is a joined directory."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agent.config import load
from agent.session import Machine, Session
from tests.integration.nodes.standin import StandIn

if __name__ == "__main__":
    config = load(Path(sys.argv[1]) / "agent.toml")
    asyncio.run(Session(config, StandIn(), Machine("m1", "b1")).run())
