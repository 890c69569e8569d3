import asyncio
from typing import Any, cast

import pytest

from horchestra.apimachinery.errors import StatusError
from horchestra.apiserver import fanout
from horchestra.apiserver.fanout import Backlog, Member


class Lines:
    """Only what a member itself asks of its lines."""

    def error(self, error: StatusError) -> bytes:
        return error.reason.encode()


class Client:
    """A connection with or without room."""

    def __init__(self) -> None:
        self.room = True
        self.got: list[bytes] = []
        self.blocked: asyncio.Event | None = None

    def push(self, data: bytes) -> bool:
        if self.room:
            self.got.append(data)
        return self.room

    async def write(self, data: bytes) -> None:
        if self.blocked is not None:
            await self.blocked.wait()
        self.got.append(data)


def member(client: Client) -> Member:
    return Member(cast(Any, None), cast(Any, Lines()), False, client.push, 0, Backlog())


async def test_what_comes_before_the_start_is_written_first_and_then_directly() -> None:
    client = Client()
    watch = member(client)
    watch.offer(b"1")
    watch.offer(b"2")
    pumping = asyncio.create_task(watch.pump(client.write))
    await asyncio.sleep(0)
    watch.offer(b"3")
    assert client.got == [b"12", b"3"]
    watch.end()
    await pumping


async def test_order_is_kept_when_the_connection_has_no_room_for_a_while() -> None:
    client = Client()
    watch = member(client)
    pumping = asyncio.create_task(watch.pump(client.write))
    await asyncio.sleep(0)
    client.room, client.blocked = False, asyncio.Event()
    watch.offer(b"1")
    await asyncio.sleep(0)
    client.room = True
    watch.offer(b"2")
    watch.offer(b"3")
    assert client.got == []
    client.blocked.set()
    await asyncio.sleep(0.01)
    watch.offer(b"4")
    assert client.got == [b"1", b"23", b"4"]
    watch.end()
    await pumping


async def test_a_client_that_lags_too_far_behind_is_told_to_list_again() -> None:
    client = Client()
    client.room, client.blocked = False, asyncio.Event()
    watch = member(client)
    pumping = asyncio.create_task(watch.pump(client.write))
    for _ in range(4):
        watch.offer(b"x" * (fanout.PENDING // 3))
        await asyncio.sleep(0)
    assert sum(map(len, watch._pending)) <= fanout.PENDING
    for _ in range(4):
        watch.offer(b"x" * (fanout.PENDING // 3))
    assert not watch._pending
    client.blocked.set()
    await pumping
    assert client.got[-1] == b"Expired"


async def test_what_waits_is_written_before_the_end() -> None:
    client = Client()
    watch = member(client)
    watch.offer(b"1")
    watch.end()
    watch.offer(b"2")
    await watch.pump(client.write)
    assert client.got == [b"1"]


async def test_of_all_slow_clients_the_one_furthest_behind_gives_way() -> None:
    backlog = Backlog(1000)
    clients = [Client() for _ in range(3)]
    watches = []
    for client in clients:
        client.room = False
        lines = cast(Any, Lines())
        watches.append(Member(cast(Any, None), lines, False, client.push, 0, backlog))
    watches[0].offer(b"x" * 500)
    watches[1].offer(b"x" * 400)
    watches[2].offer(b"x" * 200)
    for watch in watches:
        watch.end()
        await watch.pump(clients[watches.index(watch)].write)
    assert [b"".join(c.got)[:7] for c in clients] == [b"Expired", b"xxxxxxx", b"xxxxxxx"]


async def test_a_client_in_the_middle_of_a_line_is_cut_off_when_all_hold_too_much() -> None:
    client = Client()
    client.room, client.blocked = False, asyncio.Event()
    watch = Member(cast(Any, None), cast(Any, Lines()), False, client.push, 0, Backlog(fanout.PENDING))
    pumping = asyncio.create_task(watch.pump(client.write))
    watch.offer(b"x" * fanout.PENDING)
    await asyncio.sleep(0)
    watch.offer(b"y" * 10)
    assert watch._size == 0
    client.blocked.set()
    with pytest.raises(ConnectionAbortedError):
        await pumping


async def test_a_large_piece_goes_out_in_parts_that_the_client_has_to_take() -> None:
    client = Client()
    watch = member(client)
    pumping = asyncio.create_task(watch.pump(client.write))
    await asyncio.sleep(0)
    watch.offer(b"x" * (2 * fanout.DIRECT + 1))
    watch.end()
    await pumping
    assert [len(part) for part in client.got] == [fanout.DIRECT, fanout.DIRECT, 1]


async def test_nothing_is_encoded_for_who_has_fallen_behind() -> None:
    client = Client()
    client.room = False
    watch = member(client)
    watch.offer(b"x" * (fanout.PENDING // 2))
    watch.offer(b"x" * fanout.PENDING)
    assert watch.ended
