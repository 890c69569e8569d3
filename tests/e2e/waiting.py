"""Waiting for a fact, with words about what was seen last when it does not come."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

Fact = TypeVar("Fact")


def until(fact: Callable[[], Fact], what: str, seconds: float = 20, seen: Callable[[], Any] = lambda: "") -> Fact:
    """Ask until `fact` is true and return its value. Raises AssertionError with `seen()` after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (value := fact()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}\n{seen()}")
        time.sleep(0.05)
    return value


def throughout(fact: Callable[[], bool], what: str, seconds: float) -> None:
    """Ask for so long; the fact must hold each time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert fact(), f"no longer: {what}"
        time.sleep(0.1)
