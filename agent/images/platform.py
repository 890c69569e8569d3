"""Which entry of an image index is meant for this machine."""

import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# uname -m to GOARCH and variant, as containerd's platforms package writes them
_MACHINES: Mapping[str, tuple[str, str]] = {
    "x86_64": ("amd64", ""),
    "amd64": ("amd64", ""),
    "aarch64": ("arm64", ""),
    "arm64": ("arm64", ""),
    "armv7l": ("arm", "v7"),
    "armv6l": ("arm", "v6"),
    "i386": ("386", ""),
    "i686": ("386", ""),
    "ppc64le": ("ppc64le", ""),
    "s390x": ("s390x", ""),
    "riscv64": ("riscv64", ""),
    "loongarch64": ("loong64", ""),
    "mips64": ("mips64le" if sys.byteorder == "little" else "mips64", ""),
}
_BASELINE = {"amd64": "v1", "arm64": "v8"}
_ARM_ORDER = ("v5", "v6", "v7", "v8")


@dataclass(frozen=True, slots=True)
class Platform:
    """Operating system and architecture in Go's names; `variant` is "" where the architecture has one only."""

    os: str
    architecture: str
    variant: str = ""

    @classmethod
    def host(cls) -> "Platform":
        machine = platform.machine().lower()
        architecture, variant = _MACHINES.get(machine, (machine, ""))
        return cls("linux", architecture, variant)

    @classmethod
    def parse(cls, value: Any) -> "Platform | None":
        """A `platform` object of an index or the head of an image configuration; None when it says nothing usable."""
        if not isinstance(value, dict):
            return None
        fields = [value.get(name) or "" for name in ("os", "architecture", "variant")]
        return cls(*fields) if all(isinstance(text, str) for text in fields) and fields[1] else None

    def fitness(self, offered: "Platform") -> int:
        """How well this machine runs what is `offered`: 0 not at all, higher is better."""
        if (offered.os or "linux", offered.architecture) != (self.os, self.architecture):
            return 0
        if self.architecture == "arm" and self.variant:
            variant = offered.variant or "v7"
            usable = variant in _ARM_ORDER and _ARM_ORDER.index(variant) <= _ARM_ORDER.index(self.variant)
            return 1 + _ARM_ORDER.index(variant) if usable else 0
        if offered.variant == self.variant:
            return 2
        return 1 if offered.variant == _BASELINE.get(self.architecture) else 0

    def __str__(self) -> str:
        return "/".join(part for part in (self.os or "linux", self.architecture, self.variant) if part)
