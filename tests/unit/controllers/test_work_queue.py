import asyncio

from horchestra.controllers.manager import WorkQueue

A, B = ("apps", "default", "a"), ("apps", "default", "b")


async def test_a_key_waits_once_and_in_order() -> None:
    queue = WorkQueue()
    for key in (A, B, A):
        queue.add(key)
    assert [await queue.take(), await queue.take()] == [A, B]


async def test_a_key_is_not_looked_at_twice_at_the_same_time() -> None:
    queue = WorkQueue()
    queue.add(A)
    assert await queue.take() == A
    queue.add(A)
    waiting = asyncio.ensure_future(queue.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.done(A)
    assert await waiting == A


async def test_a_key_that_is_due_later_comes_sooner_when_it_changes() -> None:
    queue = WorkQueue()
    queue.add_later(A, 3600)
    queue.add(A)
    assert await queue.take() == A
    queue.done(A)
    queue.add_later(A, 0.01)
    assert await queue.take() == A
