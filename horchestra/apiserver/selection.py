"""Which objects of a view a list or watch is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from horchestra.apimachinery.selectors import FieldSelector, LabelSelector
from horchestra.storage.watch import Entry, WatchCache

from .request import Request
from .view import View


@dataclass(frozen=True, slots=True)
class Selection:
    """`namespace` None: all namespaces, or a kind without. `text` is the selectors as asked, to compare pages by."""

    view: View
    namespace: str | None
    labels: LabelSelector | None
    fields: FieldSelector | None
    name: str | None
    """The one name that can match, when the field selector or the path demands one."""
    text: str

    @property
    def everything(self) -> bool:
        return self.labels is None and self.fields is None and self.name is None

    def matches(self, entry: Entry | None) -> bool:
        if entry is None:
            return False
        if self.name is not None and entry.name != self.name:
            return False
        if self.labels is not None and not self.labels.matches(entry.labels):
            return False
        return self.fields is None or self.fields.matches(entry.obj)

    def entries(self, cache: WatchCache) -> Sequence[Entry]:
        """What is in memory now, by (namespace, name)."""
        if self.name is not None and (self.namespace is not None or not self.view.resource.namespaced):
            entry = self.view.get(cache, self.namespace or "", self.name)
            return [entry] if entry is not None and self.matches(entry) else []
        if self.view.project is None:
            return cache.list(self.view.stored, self.namespace, self.labels, self.fields)
        return [e for e in self.view.list(cache, self.namespace) if self.matches(e)]


def selection(view: View, request: Request) -> Selection:
    """Raises StatusError BadRequest for a selector that cannot be read."""
    labels, fields = request.param("labelSelector"), request.param("fieldSelector")
    label_selector = LabelSelector.parse(labels) if labels else None
    field_selector = FieldSelector.parse(fields, view.resource.field_selectors) if fields else None
    name = request.route.name or (field_selector.exactly("metadata.name") if field_selector else None)
    namespace = request.route.namespace or None
    if namespace is None and field_selector is not None and view.resource.namespaced:
        namespace = field_selector.exactly("metadata.namespace") or None
    return Selection(view, namespace, label_selector, field_selector, name, f"{labels}\n{fields}")
