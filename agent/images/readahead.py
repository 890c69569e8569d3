"""Lets one thread inflate while another writes: most images have one layer larger than all others together."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Full, Queue

from agent.images.abort import Abort

_DEPTH = 16  # pieces of at most inflate.PIECE bytes
_POLL = 0.2


@contextmanager
def read_ahead(source: Iterator[bytes], abort: Abort) -> Iterator[Iterator[bytes]]:
    """What `source` yields, produced by a thread that is some pieces ahead. Its exceptions are raised to the reader.

    A reader that fails sets `abort`, so that the thread ends too: it never outlives the context.
    """
    queue: Queue[bytes | BaseException | None] = Queue(_DEPTH)
    stopped = threading.Event()

    def put(item: bytes | BaseException | None) -> None:
        while not stopped.is_set():
            try:
                queue.put(item, timeout=_POLL)
            except Full:
                continue
            return

    def produce() -> None:
        try:
            for piece in source:
                if stopped.is_set():
                    return
                put(piece)
        except BaseException as error:
            put(error)
        else:
            put(None)

    def pieces() -> Iterator[bytes]:
        while (item := queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item

    thread = threading.Thread(target=produce, name="layer-reader", daemon=True)
    thread.start()
    try:
        yield pieces()
    except BaseException:
        abort.set()
        raise
    finally:
        stopped.set()
        thread.join()
