"""limit and continue: every page of a list comes from the snapshot the first page was taken from."""

from __future__ import annotations

import base64
import binascii
import json
import secrets
import time
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from horchestra.apimachinery.errors import StatusError
from horchestra.storage.watch import Entry

from .selection import Selection

SNAPSHOTS = 256
SNAPSHOT_ENTRIES = 2_000_000
"""References held by all snapshots together; the oldest are given up first."""
SNAPSHOT_TIME = 15 * 60
"""Seconds a snapshot is kept, as long as the watch history at the least."""
_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the rest; objects that changed "
    "meanwhile may then be missing or of another version."
)


@dataclass(frozen=True, slots=True)
class Page:
    entries: Sequence[Entry]
    revision: int
    next: str = ""
    """Continue token, "" on the last page."""
    remaining: int = 0

    def metadata(self) -> dict[str, object]:
        found: dict[str, object] = {"resourceVersion": str(self.revision)}
        if self.next:
            found |= {"continue": self.next, "remainingItemCount": self.remaining}
        return found


@dataclass(frozen=True, slots=True)
class _Snapshot:
    what: tuple[str, str | None, str]
    entries: Sequence[Entry]
    revision: int
    taken: float


@dataclass(frozen=True, slots=True)
class _Token:
    snapshot: str
    """"" continues from what is there now."""
    after: tuple[str, str]
    """(namespace, name) of the last object of the page before."""

    def encode(self) -> str:
        text = json.dumps({"v": 1, "s": self.snapshot, "a": self.after}, separators=(",", ":"))
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> _Token:
        """Raises StatusError BadRequest."""
        try:
            fields = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            namespace, name = fields["a"]
            if fields["v"] == 1 and all(isinstance(x, str) for x in (namespace, name, fields["s"])):
                return cls(fields["s"], (namespace, name))
        except (ValueError, TypeError, KeyError, RecursionError, binascii.Error):
            pass
        raise StatusError("BadRequest", "continue key is not valid: it is not one that a list returned")


class Pages:
    """The snapshots of lists that are being paged through; bounded, the oldest give way."""

    def __init__(self) -> None:
        self._snapshots: OrderedDict[str, _Snapshot] = OrderedDict()
        self._held = 0

    def first(self, selection: Selection, entries: Sequence[Entry], revision: int, limit: int) -> Page:
        if not limit or len(entries) <= limit:
            return Page(entries, revision)
        snapshot = secrets.token_urlsafe(9)
        self._keep(snapshot, _Snapshot(_what(selection), entries, revision, time.monotonic()))
        return _page(snapshot, entries, revision, 0, limit)

    def following(self, selection: Selection, text: str, limit: int, current: Sequence[Entry], revision: int) -> Page:
        """`current` is what is there now, for a token that is content with that.

        Raises StatusError BadRequest, Expired.
        """
        token = _Token.decode(text)
        if not token.snapshot:
            return _after(token, current, revision, limit)
        found = self._snapshots.get(token.snapshot)
        if found is None or found.taken + SNAPSHOT_TIME < time.monotonic():
            raise Expired(_Token("", token.after).encode())
        if found.what != _what(selection):
            raise StatusError("BadRequest", "continue key is not valid: it belongs to a list with other parameters")
        return _after(token, found.entries, found.revision, limit)

    def _keep(self, key: str, snapshot: _Snapshot) -> None:
        self._snapshots[key] = snapshot
        self._held += len(snapshot.entries)
        oldest_allowed = time.monotonic() - SNAPSHOT_TIME
        while self._snapshots and (
            len(self._snapshots) > SNAPSHOTS
            or (self._held > SNAPSHOT_ENTRIES and len(self._snapshots) > 1)
            or next(iter(self._snapshots.values())).taken < oldest_allowed
        ):
            _, dropped = self._snapshots.popitem(last=False)
            self._held -= len(dropped.entries)


class Expired(StatusError):
    """410 with a token to go on with all the same."""

    def __init__(self, token: str) -> None:
        super().__init__("Expired", _EXPIRED)
        self.token = token

    def status(self) -> dict[str, object]:
        return {**super().status(), "metadata": {"continue": self.token}}


def _after(token: _Token, entries: Sequence[Entry], revision: int, limit: int) -> Page:
    start = bisect_right(entries, token.after, key=lambda e: (e.namespace, e.name))
    return _page(token.snapshot, entries, revision, start, limit or len(entries))


def _page(snapshot: str, entries: Sequence[Entry], revision: int, start: int, limit: int) -> Page:
    chosen = entries[start : start + limit]
    remaining = len(entries) - start - len(chosen)
    if remaining <= 0 or not chosen:
        return Page(chosen, revision)
    last = chosen[-1]
    return Page(chosen, revision, _Token(snapshot, (last.namespace, last.name)).encode(), remaining)


def _what(selection: Selection) -> tuple[str, str | None, str]:
    return selection.view.resource.qualified, selection.namespace, selection.text
