"""How far back changes can be watched."""

from __future__ import annotations

from horchestra.storage.compaction import History


def test_a_revision_is_forgotten_when_it_was_the_newest_long_enough_ago() -> None:
    history = History(900)
    assert history.horizon(10, 0) is None
    assert history.horizon(20, 60) is None
    assert history.horizon(30, 899) is None
    assert history.horizon(40, 900) == 10
    assert history.horizon(40, 901) is None
    assert history.horizon(40, 2000) == 40


def test_what_was_found_at_start_keeps_its_age() -> None:
    history = History(900)
    wall = 10_000_000
    history.loaded([(wall - 1_000_000, 1), (wall - 800_000, 2), (wall - 1000, 3)], wall, monotonic=5000)
    assert history.horizon(3, 5000) == 1
    assert history.horizon(3, 5101) == 2
    assert history.horizon(3, 5950) == 3


def test_a_clock_that_was_ahead_makes_nothing_immortal() -> None:
    history = History(900)
    wall = 10_000_000
    history.loaded([(wall + 400 * 86_400_000, 1), (wall - 10, 2)], wall, monotonic=0)
    assert history.horizon(2, 899) is None
    assert history.horizon(2, 901) == 2
