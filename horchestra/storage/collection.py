"""All objects of one kind, always in order, with their encoding at hand in blocks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Hashable, Iterator

from .entry import Entry

_BLOCK = 128
"""Entries per block before it splits. A write makes one block's joined bytes stale: a LIST after it joins little, and a
selector is asked about little."""

_SELECTIONS = 4
"""Selectors whose encoded matches are kept, the last used ones; each may take as much memory as the objects do."""

Accept = Callable[[Entry], bool]


class _Block:
    __slots__ = ("entries", "joined", "names", "selected")

    def __init__(self, names: list[str], entries: list[Entry]) -> None:
        self.names = names
        self.entries = entries
        self.joined: bytes | None = None
        self.selected: dict[int, bytes] = {}
        """By number of the selection."""

    def changed(self) -> None:
        self.joined = None
        self.selected.clear()

    def encoded(self) -> bytes:
        if self.joined is None:
            self.joined = b",".join([entry.body for entry in self.entries])
        return self.joined

    def encoded_matches(self, accept: Accept, selection: int) -> bytes:
        found = self.selected.get(selection)
        if found is None:
            bodies = [entry.body for entry in self.entries if accept(entry)]
            found = self.encoded() if len(bodies) == len(self.entries) else b",".join(bodies)
            self.selected[selection] = found
        return found


class NamespaceEntries:
    """Objects of one kind in one namespace, by name."""

    def __init__(self) -> None:
        self._blocks: list[_Block] = []
        self._firsts: list[str] = []
        """First name of each block."""

    def __len__(self) -> int:
        return sum(len(block.names) for block in self._blocks)

    def put(self, entry: Entry) -> None:
        if not self._blocks:
            self._blocks.append(_Block([entry.name], [entry]))
            self._firsts.append(entry.name)
            return
        at = max(0, bisect_right(self._firsts, entry.name) - 1)
        block = self._blocks[at]
        block.changed()
        index = bisect_left(block.names, entry.name)
        if index < len(block.names) and block.names[index] == entry.name:
            block.entries[index] = entry
            return
        block.names.insert(index, entry.name)
        block.entries.insert(index, entry)
        self._firsts[at] = block.names[0]
        if len(block.names) > _BLOCK:
            half = len(block.names) // 2
            upper = _Block(block.names[half:], block.entries[half:])
            del block.names[half:], block.entries[half:]
            self._blocks.insert(at + 1, upper)
            self._firsts.insert(at + 1, upper.names[0])

    def remove(self, name: str) -> None:
        at = bisect_right(self._firsts, name) - 1
        block = self._blocks[at]
        index = bisect_left(block.names, name)
        del block.names[index], block.entries[index]
        block.changed()
        if block.names:
            self._firsts[at] = block.names[0]
        else:
            del self._blocks[at], self._firsts[at]

    def entries(self, accept: Accept | None = None) -> Iterator[list[Entry]]:
        """Entries in order, a block at a time."""
        for block in self._blocks:
            yield block.entries if accept is None else [e for e in block.entries if accept(e)]

    def bodies(self) -> Iterator[bytes]:
        """Bodies in order, joined with commas, a block at a time."""
        for block in self._blocks:
            yield block.encoded()

    def matches(self, accept: Accept, selection: int) -> Iterator[bytes]:
        """The same of what is accepted."""
        for block in self._blocks:
            if found := block.encoded_matches(accept, selection):
                yield found

    def forget(self, selection: int) -> None:
        for block in self._blocks:
            block.selected.pop(selection, None)


class Collection:
    """Objects of one kind by (namespace, name); cluster-scoped ones have namespace ""."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, str], Entry] = {}
        self._namespaces: dict[str, NamespaceEntries] = {}
        self._order: list[str] = []
        self._labels: dict[tuple[str, str], dict[tuple[str, str], Entry]] = {}
        self._selections: dict[Hashable, int] = {}
        """Selector to the number its matches are kept by, last used last."""
        self._numbered = 0

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, namespace: str, name: str) -> Entry | None:
        return self._by_key.get((namespace, name))

    def put(self, entry: Entry) -> None:
        key = (entry.namespace, entry.name)
        self._unlabel(key)
        self._by_key[key] = entry
        for label in entry.labels.items():
            self._labels.setdefault(label, {})[key] = entry
        within = self._namespaces.get(entry.namespace)
        if within is None:
            within = self._namespaces[entry.namespace] = NamespaceEntries()
            insort(self._order, entry.namespace)
        within.put(entry)

    def remove(self, namespace: str, name: str) -> None:
        self._unlabel((namespace, name))
        del self._by_key[namespace, name]
        within = self._namespaces[namespace]
        within.remove(name)
        if not len(within):
            del self._namespaces[namespace]
            self._order.remove(namespace)

    def labelled(self, label: str, value: str) -> dict[tuple[str, str], Entry]:
        """Entries that carry the label, unordered."""
        return self._labels.get((label, value), {})

    def entries(self, namespace: str | None, accept: Accept | None = None) -> list[Entry]:
        return [e for within in self._within(namespace) for block in within.entries(accept) for e in block]

    def bodies(self, namespace: str | None) -> list[bytes]:
        return [joined for within in self._within(namespace) for joined in within.bodies()]

    def matches(self, namespace: str | None, accept: Accept, selector: Hashable) -> list[bytes]:
        """Bodies of what is accepted; `selector` stands for `accept`: equal ones accept the same."""
        selection = self._number(selector)
        return [joined for within in self._within(namespace) for joined in within.matches(accept, selection)]

    def _number(self, selector: Hashable) -> int:
        number = self._selections.pop(selector, 0)
        if not number:
            self._numbered += 1
            number = self._numbered
            if len(self._selections) >= _SELECTIONS:
                forgotten = self._selections.pop(next(iter(self._selections)))
                for within in self._namespaces.values():
                    within.forget(forgotten)
        self._selections[selector] = number
        return number

    def _within(self, namespace: str | None) -> list[NamespaceEntries]:
        names = self._order if namespace is None else [namespace]
        return [self._namespaces[name] for name in names if name in self._namespaces]

    def _unlabel(self, key: tuple[str, str]) -> None:
        old = self._by_key.get(key)
        if old is None:
            return
        for label in old.labels.items():
            carriers = self._labels[label]
            del carriers[key]
            if not carriers:
                del self._labels[label]
