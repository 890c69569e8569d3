"""What the API door counts, for Prometheus."""

from __future__ import annotations

from functools import lru_cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

REGISTRY = CollectorRegistry()

REQUESTS = Counter(
    "apiserver_request_total",
    "Requests answered, by verb, resource and HTTP code.",
    ("verb", "group", "resource", "code"),
    registry=REGISTRY,
)
WATCHERS = Gauge(
    "apiserver_longrunning_requests",
    "Watches and log streams that are open.",
    ("verb", "group", "resource"),
    registry=REGISTRY,
)
STORE_SECONDS = Histogram(
    "horchestra_store_seconds",
    "Time from handing a write to the store to its commit.",
    ("operation",),
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
    registry=REGISTRY,
)


@lru_cache(maxsize=1024)
def requests(verb: str, group: str, resource: str, code: int) -> Counter:
    """The counter of these labels; looking it up in the library costs more than counting."""
    return REQUESTS.labels(verb, group, resource, code)


CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"


def text() -> bytes:
    return generate_latest(REGISTRY)
