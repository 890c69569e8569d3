"""Layers on their way: one thread and one transfer per layer, however many pulls want it."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path

from agent.images.abort import Abort

_POLL = 0.2


@dataclass(slots=True, eq=False)
class Transfer:
    """One layer being fetched and unpacked. `received` counts its compressed bytes."""

    chain_id: str
    abort: Abort = field(default_factory=Abort)
    future: Future[Path] = field(default_factory=Future)
    received: int = 0
    users: int = 1

    def wait(self, abort: Abort) -> Path:
        """The finished tree, waited for in a thread that itself may be aborted. Raises what the transfer raised."""
        while True:
            abort.check()
            try:
                return self.future.result(_POLL)
            except TimeoutError:
                continue


class Transfers:
    """Running transfers by layer stack. Each has a thread of its own at once: a slow registry holds up no other pull.

    A layer may wait for the layers below it, so a pull must ask for lower layers first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, Transfer] = {}
        self._threads: set[threading.Thread] = set()

    def join(self, chain_id: str, work: Callable[[Transfer], Path]) -> tuple[Transfer, bool]:
        """The running transfer of this layer stack, or a new one that does `work`; and whether it was running."""
        with self._lock:
            if running := self._running.get(chain_id):
                running.users += 1
                return running, True
            transfer = self._running[chain_id] = Transfer(chain_id)
            thread = threading.Thread(target=self._run, args=(transfer, work), name="layer", daemon=True)
            thread.start()
            self._threads = {thread, *(other for other in self._threads if other.is_alive())}
        return transfer, False

    def leave(self, transfer: Transfer) -> bool:
        """Ends one pull's interest; the last one out aborts the transfer, which is then reported as True."""
        with self._lock:
            transfer.users -= 1
            if transfer.users or transfer.future.done():
                return False
            self._drop(transfer)
        transfer.abort.set()
        return True

    def close(self) -> None:
        """Aborts all transfers and waits for their threads."""
        with self._lock:
            for transfer in self._running.values():
                transfer.abort.set()
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    def _run(self, transfer: Transfer, work: Callable[[Transfer], Path]) -> None:
        try:
            path = work(transfer)
        except BaseException as error:
            self._forget(transfer)
            transfer.future.set_exception(error)
        else:
            self._forget(transfer)
            transfer.future.set_result(path)

    def _forget(self, transfer: Transfer) -> None:
        with self._lock:
            self._drop(transfer)

    def _drop(self, transfer: Transfer) -> None:
        if self._running.get(transfer.chain_id) is transfer:
            del self._running[transfer.chain_id]
