import json
from datetime import UTC, datetime, timedelta

import pytest

from horchestra.apimachinery.errors import StatusError
from horchestra.apiserver.table import age, columns_of, include_object, row
from horchestra.kinds.event import Event
from horchestra.storage.entry import Entry

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("passed", "text"),
    [
        (timedelta(seconds=-5), "0s"),
        (timedelta(seconds=0), "0s"),
        (timedelta(seconds=119), "119s"),
        (timedelta(seconds=120), "2m"),
        (timedelta(minutes=3, seconds=20), "3m20s"),
        (timedelta(minutes=10, seconds=20), "10m"),
        (timedelta(minutes=179), "179m"),
        (timedelta(hours=3), "3h"),
        (timedelta(hours=5, minutes=7), "5h7m"),
        (timedelta(hours=47), "47h"),
        (timedelta(days=2, hours=1), "2d1h"),
        (timedelta(days=9, hours=1), "9d"),
        (timedelta(days=800), "2y70d"),
        (timedelta(days=4000), "10y"),
    ],
)
def test_an_age_has_the_two_units_that_matter(passed: timedelta, text: str) -> None:
    assert age((NOW - passed).isoformat().replace("+00:00", "Z"), NOW) == text


@pytest.mark.parametrize("timestamp", [None, "", "yesterday", "2026-01-01T00:00:00"])
def test_an_age_without_a_time_is_unknown(timestamp: str | None) -> None:
    assert age(timestamp, NOW) == "<unknown>"


def test_include_object_knows_three_words() -> None:
    assert include_object("") == "Metadata"
    assert include_object("Object") == "Object"
    with pytest.raises(StatusError, match="includeObject"):
        include_object("All")


def test_events_are_shown_as_kubernetes_shows_them_and_grow_older() -> None:
    obj = {
        "metadata": {"name": "e.1", "creationTimestamp": "2025-12-31T23:00:00Z"},
        "involvedObject": {"kind": "Application", "name": "web"},
        "type": "Warning",
        "reason": "BackOff",
        "message": "it ended\n",
        "source": {"component": "agent", "host": "sav-01"},
        "firstTimestamp": "2025-12-31T23:30:00Z",
        "lastTimestamp": "2025-12-31T23:59:30Z",
        "count": 3,
    }
    shown = columns_of(Event.resource)
    assert [c.name for c in shown if not c.wide] == ["Last Seen", "Type", "Reason", "Object", "Message"]
    entry = Entry(Event, "default", "e.1", "u", 1, b"{}", obj)
    for seconds, last, first in ((0, "30s", "30m"), (10, "40s", "30m"), (3600, "60m", "90m")):
        cells = json.loads(row(Event.resource, entry, "None", NOW + timedelta(seconds=seconds)))["cells"]
        expected = [last, "Warning", "BackOff", "application/web", "", "agent, sav-01", "it ended", first, 3, "e.1"]
        assert cells == expected
