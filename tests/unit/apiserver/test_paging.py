from typing import Any, cast

import pytest

from horchestra.apimachinery.errors import StatusError
from horchestra.apiserver import paging
from horchestra.apiserver.paging import Pages
from horchestra.apiserver.selection import Selection
from horchestra.apiserver.view import View
from horchestra.kinds.configmap import ConfigMap
from horchestra.storage.watch import Entry

SELECTION = Selection(View(ConfigMap, ConfigMap), "default", None, None, None, "")


def entries(*names: str) -> list[Entry]:
    return [Entry(ConfigMap, "default", name, "uid", 1, b"{}") for name in names]


def names(page: paging.Page) -> list[str]:
    return [entry.name for entry in page.entries]


def test_pages_cover_the_list_once() -> None:
    pages, everything = Pages(), entries(*"abcdefg")
    page = pages.first(SELECTION, everything, 9, 3)
    seen = names(page)
    while page.next:
        page = pages.following(SELECTION, page.next, 3, [], 99)
        assert page.revision == 9
        seen += names(page)
    assert seen == list("abcdefg")


def test_a_list_that_fits_is_not_kept() -> None:
    pages = Pages()
    assert pages.first(SELECTION, entries("a", "b"), 9, 2).next == ""
    assert pages.first(SELECTION, entries("a", "b"), 9, 0).next == ""
    assert not pages._snapshots


def test_snapshots_are_bounded_and_the_oldest_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "SNAPSHOTS", 3)
    pages, everything = Pages(), entries("a", "b")
    tokens = [pages.first(SELECTION, everything, 9, 1).next for _ in range(5)]
    assert len(pages._snapshots) == 3
    with pytest.raises(StatusError, match="too old") as caught:
        pages.following(SELECTION, tokens[0], 1, [], 9)
    assert caught.value.code == 410
    assert names(pages.following(SELECTION, tokens[-1], 1, [], 9)) == ["b"]


def test_the_token_of_an_expired_list_goes_on_with_what_is_there() -> None:
    pages = Pages()
    token = pages.first(SELECTION, entries("a", "b", "c"), 9, 2).next
    pages._snapshots.clear()
    with pytest.raises(paging.Expired) as caught:
        pages.following(SELECTION, token, 2, [], 9)
    fresh = cast(Any, caught.value.status())["metadata"]["continue"]
    page = pages.following(SELECTION, fresh, 2, entries("a", "bb", "c"), 20)
    assert (names(page), page.revision) == (["bb", "c"], 20)


@pytest.mark.parametrize("token", ["", "x", "!!!", "e30", "bnVsbA", "W10", "eyJ2IjoxfQ", "a" * 5000])
def test_a_token_nobody_gave_is_refused(token: str) -> None:
    with pytest.raises(StatusError) as caught:
        Pages().following(SELECTION, token, 1, [], 1)
    assert caught.value.code == 400
