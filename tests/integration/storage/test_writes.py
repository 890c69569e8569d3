"""Create, update, delete: the rules that hold for every kind."""

from __future__ import annotations

from typing import Any

import pytest

from horchestra.apimachinery.admission import SYSTEM
from horchestra.apimachinery.errors import StatusError
from horchestra.kinds.namespace import Namespace
from horchestra.storage.store import DeleteOptions, Store, WriteOptions
from tests.integration.storage.conftest import OPTIONS, Estate
from tests.integration.storage.kinds import Vault, Widget, widget

Json = dict[str, Any]


def edit(**spec: Any) -> Any:
    def change(obj: Json) -> Json:
        obj["spec"].update(spec)
        return obj

    return change


async def refused(call: Any) -> StatusError:
    with pytest.raises(StatusError) as caught:
        await call
    return caught.value


async def test_create_get_again_delete_get(store: Store) -> None:
    made = await store.create(Widget, widget("a"), OPTIONS)
    meta = made.obj["metadata"]
    assert (made.obj["apiVersion"], made.obj["kind"]) == ("test.example/v1", "Widget")
    assert meta["uid"]
    assert meta["creationTimestamp"].endswith("Z")
    assert meta["resourceVersion"] == str(store.watch.revision)
    assert meta["generation"] == 1
    assert made.obj["spec"] == {"size": 1, "color": "red"}
    entry = store.watch.get(Widget, "default", "a")
    assert entry is not None
    assert (entry.obj, entry.body) == (made.obj, made.body)
    again = await refused(store.create(Widget, widget("a"), OPTIONS))
    assert (again.code, again.reason) == (409, "AlreadyExists")
    assert again.message == 'widgets.test.example "a" already exists'
    gone = await store.delete(Widget, "default", "a", DeleteOptions(SYSTEM))
    assert gone.gone
    assert gone.obj["metadata"]["uid"] == meta["uid"]
    assert store.watch.get(Widget, "default", "a") is None
    missing = await refused(store.delete(Widget, "default", "a", DeleteOptions(SYSTEM)))
    assert (missing.reason, missing.message) == ("NotFound", 'widgets.test.example "a" not found')


async def test_what_the_server_sets_cannot_be_set_by_clients(store: Store) -> None:
    claimed = {"uid": "x", "generation": 7, "creationTimestamp": "1970-01-01T00:00:00Z", "deletionTimestamp": "now"}
    obj = widget("a")
    obj["metadata"].update(claimed)
    obj["status"] = {"seen": 9}
    made = await store.create(Widget, obj, OPTIONS)
    assert made.obj["metadata"]["uid"] != "x"
    assert made.obj["metadata"]["generation"] == 1
    assert "deletionTimestamp" not in made.obj["metadata"]
    assert "status" not in made.obj

    def change(current: Json) -> Json:
        current["metadata"].update(generation=7, creationTimestamp="1970-01-01T00:00:00Z", deletionTimestamp="now")
        current["metadata"]["labels"] = {"a": "b"}
        return current

    updated = await store.update(Widget, "default", "a", change, OPTIONS)
    for field in ("uid", "creationTimestamp", "generation"):
        assert updated.obj["metadata"][field] == made.obj["metadata"][field]
    assert "deletionTimestamp" not in updated.obj["metadata"]


async def test_generation_rises_with_spec_only(store: Store) -> None:
    await store.create(Widget, widget("a"), OPTIONS)

    def label(obj: Json) -> Json:
        obj["metadata"]["labels"] = {"a": "b"}
        return obj

    def seen(obj: Json) -> Json:
        return {**obj, "status": {"seen": 3}, "spec": {"size": 50}}

    async def generation(change: Any, subresource: str = "") -> tuple[int, Json]:
        written = await store.update(Widget, "default", "a", change, OPTIONS, subresource=subresource)
        return written.obj["metadata"]["generation"], written.obj

    assert (await generation(label))[0] == 1
    after_status, obj = await generation(seen, "status")
    assert after_status == 1
    assert (obj["status"], obj["spec"]["size"]) == ({"seen": 3}, 1)
    after_spec, obj = await generation(lambda o: {**o, "spec": {"size": 2}, "status": {"seen": 99}})
    assert after_spec == 2
    assert (obj["status"], obj["spec"]["size"]) == ({"seen": 3}, 2)
    put: Json = {"metadata": {"name": "a"}, "spec": {"size": 3}}
    assert (await generation(lambda _: put))[0] == 3
    assert (await generation(lambda o: o))[1]["status"] == {"seen": 3}


async def test_a_status_write_changes_no_metadata(store: Store) -> None:
    await store.create(Widget, widget("a"), OPTIONS)

    def change(obj: Json) -> Json:
        obj["metadata"].update(labels={"a": "b"}, finalizers=["x.example/y"])
        obj["status"] = {"seen": 1}
        return obj

    written = await store.update(Widget, "default", "a", change, OPTIONS, subresource="status")
    assert "labels" not in written.obj["metadata"]
    assert "finalizers" not in written.obj["metadata"]


async def test_a_write_that_changes_nothing_leaves_no_trace(store: Store) -> None:
    made = await store.create(Widget, widget("a", note="x"), OPTIONS)
    before = store.watch.revision
    same = await store.update(Widget, "default", "a", lambda o: o, OPTIONS)
    shuffled = await store.update(
        Widget, "default", "a", lambda _: {"spec": {"note": "x"}, "metadata": {"name": "a"}}, OPTIONS
    )
    status = await store.update(Widget, "default", "a", lambda o: o, OPTIONS, subresource="status")
    assert not same.changed
    assert not shuffled.changed
    assert not status.changed
    assert shuffled.obj == made.obj
    assert store.watch.revision == before


async def test_an_outdated_version_or_another_uid_conflicts(store: Store) -> None:
    first = await store.create(Widget, widget("a"), OPTIONS)
    await store.update(Widget, "default", "a", edit(size=2), OPTIONS)

    def outdated(obj: Json) -> Json:
        obj["metadata"]["resourceVersion"] = first.obj["metadata"]["resourceVersion"]
        return edit(size=3)(obj)

    error = await refused(store.update(Widget, "default", "a", outdated, OPTIONS))
    assert (error.code, error.reason) == (409, "Conflict")
    assert error.message == (
        'Operation cannot be fulfilled on widgets.test.example "a": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )

    def other(obj: Json) -> Json:
        obj["metadata"]["uid"] = "other"
        return obj

    error = await refused(store.update(Widget, "default", "a", other, OPTIONS))
    assert error.reason == "Conflict"
    assert "Precondition failed: UID in precondition: other" in error.message
    error = await refused(store.delete(Widget, "default", "a", DeleteOptions(SYSTEM, uid="other")))
    assert error.reason == "Conflict"
    version = first.obj["metadata"]["resourceVersion"]
    error = await refused(store.delete(Widget, "default", "a", DeleteOptions(SYSTEM, resource_version=version)))
    assert error.reason == "Conflict"
    uid = first.obj["metadata"]["uid"]
    assert (await store.delete(Widget, "default", "a", DeleteOptions(SYSTEM, uid=uid))).gone


async def test_a_version_on_create_is_refused(store: Store) -> None:
    obj = widget("a")
    obj["metadata"]["resourceVersion"] = "7"
    assert (await refused(store.create(Widget, obj, OPTIONS))).reason == "BadRequest"


async def test_names_cannot_change(store: Store) -> None:
    await store.create(Widget, widget("a"), OPTIONS)

    def rename(obj: Json) -> Json:
        obj["metadata"]["name"] = "b"
        return obj

    error = await refused(store.update(Widget, "default", "a", rename, OPTIONS))
    assert error.reason == "Invalid"
    assert error.causes[0].field == "metadata.name"


async def test_every_fault_is_told_at_once(store: Store) -> None:
    obj = widget("A_", size=1000, color="blue", note=7)
    obj["metadata"]["labels"] = {"bad key": "x", "good": "bad value!"}
    error = await refused(store.create(Widget, obj, OPTIONS))
    assert (error.code, error.kind, error.group) == (422, "Widget", "test.example")
    assert sorted((c.field, c.reason) for c in error.causes) == [
        ("metadata.labels[bad key]", "FieldValueInvalid"),
        ("metadata.labels[good]", "FieldValueInvalid"),
        ("metadata.name", "FieldValueInvalid"),
        ("spec.color", "FieldValueNotSupported"),
        ("spec.note", "FieldValueTypeInvalid"),
        ("spec.size", "FieldValueInvalid"),
    ]
    rule = await refused(store.create(Widget, widget("a", note="forbidden"), OPTIONS))
    assert [(c.field, c.message) for c in rule.causes] == [("spec.note", "must not be said")]
    await store.create(Widget, widget("a"), OPTIONS)
    frozen = await refused(store.update(Widget, "default", "a", edit(color="green"), OPTIONS))
    assert [c.field for c in frozen.causes] == ["spec.color"]


@pytest.mark.parametrize("body", [[], "x", None, {"metadata": []}, {"kind": "Gadget"}, {"apiVersion": "v9"}])
async def test_what_is_no_object_of_the_kind_is_a_bad_request(store: Store, body: Any) -> None:
    assert (await refused(store.create(Widget, body, OPTIONS))).reason == "BadRequest"


async def test_unknown_fields_are_refused_warned_of_or_dropped(store: Store) -> None:
    def body(name: str) -> Json:
        obj = widget(name, bogus=1)
        obj["extra"] = {}
        return obj

    error = await refused(store.create(Widget, body("a"), OPTIONS))
    assert error.reason == "BadRequest"
    assert error.message == (
        'Widget in version "v1" cannot be handled as a Widget: strict decoding error: '
        'unknown field "spec.bogus", unknown field "extra"'
    )
    warned = await store.create(Widget, body("b"), WriteOptions(SYSTEM, field_validation="Warn"))
    assert warned.warnings == ['unknown field "spec.bogus"', 'unknown field "extra"']
    ignored = await store.create(Widget, body("c"), WriteOptions(SYSTEM, field_validation="Ignore"))
    assert ignored.warnings == []
    for written in (warned, ignored):
        assert written.obj["spec"] == {"size": 1, "color": "red"}
        assert "extra" not in written.obj


async def test_null_means_absent(store: Store) -> None:
    obj = widget("a", size=None, note=None)
    obj["metadata"]["creationTimestamp"] = None
    obj["metadata"]["labels"] = None
    made = await store.create(Widget, obj, OPTIONS)
    assert made.obj["spec"] == {"size": 1, "color": "red"}
    assert "labels" not in made.obj["metadata"]


async def test_a_dry_run_says_what_would_be_and_stores_nothing(store: Store, estate: Estate) -> None:
    dry = WriteOptions(SYSTEM, dry_run=True)
    subscription = store.watch.subscribe(None)
    before = store.watch.revision
    would = await store.create(Widget, widget("a", mentions=["b"]), dry)
    assert would.obj["metadata"]["uid"]
    assert would.warnings == ['spec.mentions[0]: widget "b" not found']
    assert (await refused(store.create(Widget, widget("a", size=-1), dry))).reason == "Invalid"
    assert store.watch.get(Widget, "default", "a") is None
    await store.create(Widget, widget("b"), OPTIONS)
    assert (await refused(store.create(Widget, widget("b"), dry))).reason == "AlreadyExists"
    changed = await store.update(Widget, "default", "b", edit(size=7), dry)
    assert changed.obj["spec"]["size"] == 7
    assert (await store.delete(Widget, "default", "b", DeleteOptions(SYSTEM, dry_run=True))).gone
    kept = store.watch.get(Widget, "default", "b")
    assert kept is not None
    assert kept.obj["spec"]["size"] == 1
    assert store.watch.revision == before + 1
    assert [e.entry.name for e in await subscription.next_batch()] == ["b"]


async def test_generated_names_are_new(store: Store) -> None:
    names = set()
    for _ in range(50):
        obj: Json = {"metadata": {"generateName": "w-", "namespace": "default"}, "spec": {}}
        names.add((await store.create(Widget, obj, OPTIONS)).obj["metadata"]["name"])
    assert len(names) == 50
    assert all(name.startswith("w-") and len(name) == 7 for name in names)
    error = await refused(store.create(Widget, {"metadata": {"namespace": "default"}, "spec": {}}, OPTIONS))
    assert [(c.field, c.reason) for c in error.causes] == [("metadata.name", "FieldValueRequired")]


async def test_a_missing_reference_is_a_warning_that_heals(store: Store) -> None:
    made = await store.create(Widget, widget("a", uses=["b"]), OPTIONS)
    assert made.warnings == ['spec.uses[0]: widget "b" not found']
    await store.create(Widget, widget("b"), OPTIONS)
    again = await store.update(Widget, "default", "a", edit(note="x"), OPTIONS)
    assert again.warnings == []


async def test_admission_sees_the_writes_before_it(store: Store) -> None:
    await store.create(Widget, widget("a", size=60, note="admitted"), OPTIONS)
    error = await refused(store.create(Widget, widget("b", size=60, note="admitted"), OPTIONS))
    assert error.reason == "Forbidden"
    assert store.watch.get(Widget, "default", "b") is None
    assert (await refused(store.update(Widget, "default", "a", edit(size=60, note="forbidden"), OPTIONS))).code == 422


async def test_a_hook_may_store_a_further_object_in_the_same_commit(store: Store) -> None:
    await store.create(Widget, widget("a", note="companion"), OPTIONS)
    companion = store.watch.get(Widget, "default", "a-companion")
    assert companion is not None
    assert companion.obj["spec"]["note"] == "created"
    uid = companion.uid
    await store.delete(Widget, "default", "a", DeleteOptions(SYSTEM))
    companion = store.watch.get(Widget, "default", "a-companion")
    assert companion is not None
    assert (companion.obj["spec"]["note"], companion.uid) == ("gone", uid)


async def test_nothing_is_created_in_a_namespace_that_is_missing_or_going(store: Store) -> None:
    error = await refused(store.create(Widget, widget("a", "nowhere"), OPTIONS))
    assert (error.reason, error.message) == ("NotFound", 'namespaces "nowhere" not found')
    await store.create(Namespace, {"metadata": {"name": "going"}}, OPTIONS)
    await store.create(Widget, widget("a", "going"), OPTIONS)
    assert not (await store.delete(Namespace, "", "going", DeleteOptions(SYSTEM))).gone
    error = await refused(store.create(Widget, widget("b", "going"), OPTIONS))
    assert (error.code, error.reason) == (403, "Forbidden")
    assert "because it is being terminated" in error.message
    assert error.causes[0].reason == "NamespaceTerminating"
    assert (await store.update(Widget, "going", "a", edit(size=2), OPTIONS)).changed
    missing = await refused(store.create(Widget, {"metadata": {"name": "a"}, "spec": {}}, OPTIONS))
    assert [c.field for c in missing.causes] == ["metadata.namespace"]
    misplaced = await refused(store.create(Vault, {"metadata": {"name": "a", "namespace": "default"}}, OPTIONS))
    assert [c.field for c in misplaced.causes] == ["metadata.namespace"]


async def test_an_error_in_a_change_reaches_its_caller_and_stores_nothing(store: Store) -> None:
    await store.create(Widget, widget("a"), OPTIONS)

    def broken(obj: Json) -> Json:
        obj["spec"]["size"] = 9
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store.update(Widget, "default", "a", broken, OPTIONS)
    entry = store.watch.get(Widget, "default", "a")
    assert entry is not None
    assert entry.obj["spec"]["size"] == 1
    assert (await store.update(Widget, "default", "a", edit(size=2), OPTIONS)).changed
