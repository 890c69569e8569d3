"""Objects in order, by key, by label, in joined blocks: always what a plain dictionary would say."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from horchestra.kinds.configmap import ConfigMap
from horchestra.storage.collection import Collection
from horchestra.storage.entry import Entry

names = st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 400).map("n{:03}".format))
steps = st.lists(st.tuples(st.booleans(), names, st.sampled_from(["x", "y", "z"])), max_size=600)


def entry(key: tuple[str, str], label: str) -> Entry:
    obj = {"metadata": {"namespace": key[0], "name": key[1], "labels": {"l": label}}}
    return Entry(ConfigMap, *key, "", 0, json.dumps(obj).encode())


@given(steps)
def test_it_equals_a_sorted_dictionary_after_every_change(changes: list[tuple[bool, tuple[str, str], str]]) -> None:
    collection = Collection()
    model: dict[tuple[str, str], Entry] = {}
    for put, key, label in changes:
        if put:
            model[key] = entry(key, label)
            collection.put(model[key])
        elif key in model:
            del model[key]
            collection.remove(*key)
        if len(model) % 50 == 0:
            collection.bodies(None)
            collection.matches(None, lambda e, label=label: e.labels["l"] == label, label)  # type: ignore[misc]
    ordered = [model[key] for key in sorted(model)]
    assert len(collection) == len(model)
    assert collection.entries(None) == ordered
    assert b",".join(collection.bodies(None)) == b",".join(e.body for e in ordered)
    for namespace in ("a", "b", "c", "d"):
        within = [e for e in ordered if e.namespace == namespace]
        assert collection.entries(namespace) == within
        assert b",".join(collection.bodies(namespace)) == b",".join(e.body for e in within)
    for label in ("x", "y", "z"):
        carriers = [e for e in ordered if e.labels["l"] == label]
        assert sorted(collection.labelled("l", label)) == [(e.namespace, e.name) for e in carriers]
        assert collection.entries(None, lambda e, label=label: e.labels["l"] == label) == carriers  # type: ignore[misc]
        chosen = collection.matches(None, lambda e, label=label: e.labels["l"] == label, label)  # type: ignore[misc]
        assert b",".join(chosen) == b",".join(e.body for e in carriers)
    for key in model:
        assert collection.get(*key) is model[key]


def test_a_write_makes_only_its_own_block_new() -> None:
    collection = Collection()
    for i in range(2000):
        collection.put(entry(("a", f"n{i:04}"), "x"))
    before = collection.bodies(None)
    collection.put(entry(("a", "n1000"), "y"))
    after = collection.bodies(None)
    assert len(before) == len(after)
    assert sum(old is not new for old, new in zip(before, after, strict=True)) == 1
