"""What this host really enforces. systemd ignores a directive it does not know or cannot apply, so the agent tries."""

import asyncio
from dataclasses import dataclass

from agent import secrets

_SECONDS = 15.0
_SCRIPT = r"""
read -r pid rest </proc/self/stat # the shell's name for itself would be expanded by systemd
echo "pid $pid"
while IFS=: read -r id controllers path; do
  case ,$controllers, in
    *,memory,*) echo "memory $(cat "/sys/fs/cgroup/memory$path/memory.limit_in_bytes" 2>/dev/null)" ;;
    *,cpu,*) echo "cpu $(cat "/sys/fs/cgroup/cpu$path/cpu.cfs_quota_us" 2>/dev/null)" ;;
    ,,)
      echo "memory $(cat "/sys/fs/cgroup$path/memory.max" 2>/dev/null)"
      echo "cpu $(cat "/sys/fs/cgroup$path/cpu.max" 2>/dev/null)" ;;
  esac
done </proc/self/cgroup
"""
_MEMORY = 67108864


@dataclass(frozen=True, slots=True)
class Abilities:
    """systemd: its major version. own_processes: each application can have a PID namespace of its own."""

    systemd: int
    own_processes: bool = False
    memory_limit: bool = False
    cpu_limit: bool = False
    sealed_secrets: bool = False


async def probe(systemd: int) -> Abilities:
    """Start one short transient unit and look at what became of its settings."""
    properties = [f"MemoryMax={_MEMORY}", "CPUQuota=50%"]
    own = await _run([*properties, "PrivatePIDs=yes"]) if systemd >= 257 else {}
    seen = own or await _run(properties)
    return Abilities(
        systemd=systemd,
        own_processes=own.get("pid") == "1",
        memory_limit=seen.get("memory") == str(_MEMORY),
        cpu_limit=seen.get("cpu", "").startswith("50000"),
        sealed_secrets=await secrets.can_seal(),
    )


async def _run(properties: list[str]) -> dict[str, str]:
    """What the script said; nothing when the unit could not be started."""
    try:
        process = await asyncio.create_subprocess_exec(
            *("systemd-run", "--wait", "--pipe", "--quiet", "--collect"),
            *(f"--property={line}" for line in properties),
            *("/bin/sh", "-c", _SCRIPT),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return {}
    try:
        async with asyncio.timeout(_SECONDS):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return {}
    if process.returncode != 0:
        return {}
    seen: dict[str, str] = {}
    for line in output.decode(errors="replace").splitlines():
        name, _, value = line.partition(" ")
        if value:
            seen[name] = value
    return seen
