"""The lines between two ranks, over gloo within this process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue

import torch
from torch import Tensor
from torch._C._distributed_c10d import HashStore

from thinwire.gossip.flat import Buffers
from thinwire.gossip.lines import Head, Kind, Line, LineGroups
from thinwire.gossip.rendezvous import new_group

BYTES = 16
WAIT_S = 10.0


class Inbox:
    """Gives buffers back, and keeps what came: iteration and first byte of a message; the reason of a lost line."""

    def __init__(self) -> None:
        self.buffers = CountedBuffers(BYTES, device=torch.device("cpu"))
        self.came: SimpleQueue[tuple[int, int] | str | Head] = SimpleQueue()

    def await_room(self, peer: int) -> None:
        pass

    def on_message(self, peer: int, iteration: int, buffer: Tensor, size: int) -> None:
        self.came.put((iteration, int(buffer[0])))
        self.buffers.give(buffer)

    def on_head(self, peer: int, head: Head) -> None:
        self.came.put(head)

    def on_lost(self, peer: int, reason: str) -> None:
        self.came.put(reason)


class CountedBuffers(Buffers):
    lent = 0
    lent_max = 0

    def take(self) -> Tensor:
        self.lent += 1
        self.lent_max = max(self.lent, self.lent_max)
        return super().take()

    def give(self, buffer: Tensor) -> None:
        self.lent -= 1
        super().give(buffer)


def groups(store: HashStore, rank: int) -> LineGroups:
    return LineGroups(*(new_group(store, name, (0, 1), rank, WAIT_S) for name in LineGroups._fields))


def send(line: Line, iteration: int) -> None:
    message = torch.full((BYTES,), iteration, dtype=torch.uint8)
    line.send(Head(Kind.MESSAGE, iteration, size=BYTES), lambda: message, lambda: None)


def test_a_peer_that_skips_what_was_expected_of_it_holds_one_buffer() -> None:
    store = HashStore()
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(groups, (store, store), (0, 1))
    inboxes = Inbox(), Inbox()
    line = Line(first, 1, inboxes[0].buffers, inboxes[0])
    peer = Line(second, 0, inboxes[1].buffers, inboxes[1])
    for iteration in range(60):
        line.expect(iteration)
        if iteration % 20 == 19:  # it skips the others
            send(peer, iteration)
            assert inboxes[0].came.get(timeout=WAIT_S) == (iteration, iteration)
    send(peer, 61)
    assert inboxes[0].came.get(timeout=WAIT_S) == (61, 61), "one that was not expected comes too"
    assert inboxes[0].buffers.lent_max == 1
    for one, other in ((line, inboxes[1]), (peer, inboxes[0])):
        one.send(Head(Kind.FINISHED, 61), None, lambda: None)
        while (came := other.came.get(timeout=WAIT_S)) != Head(Kind.FINISHED, 61):
            assert isinstance(came, Head)
            assert came.kind == Kind.RECEIVED
