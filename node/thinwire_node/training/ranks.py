"""The ranks of a node of several processes, and what they say to each other.

Rank 0 is the leader: it tells the others, the followers, what to do, and each of them does the next thing that it is
told. A message is a head, in JSON, and tensors. It travels over gloo; tensors that all ranks add up or share travel
over the backend of their device.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from thinwire_proto.errors import LocalError
from thinwire_proto.limits import RANKS_IDLE_S, RANKS_MEET_S

BACKENDS = "cpu:gloo,cuda:nccl"
IDLE_MAX = timedelta(seconds=RANKS_IDLE_S)
REASON_MAX = 200
NO_MORE, INTERRUPT = 0, 1
BEGIN, END = "begin", "end"
"""The first job of a run, whose head has the kind of exchange, and the last one of the node."""
ROOM = "room"
"""The question for a follower's memory, before the first run begins."""


class RankLost(LocalError):
    """Another process of this node has ended, or cannot be reached. What its share held is lost."""


def reason_in(text: str) -> str:
    """The sentence in an error of torch.distributed, which has a place in its source before it and a stack behind."""
    first = text.strip().partition("\n")[0].partition(". ")[0]
    return re.sub(r"^\[\S+:\d+\]\s*", "", first)[:REASON_MAX] or "no reason given"


Message = tuple[dict[str, Any], list[Tensor]]
"""A head, and tensors on the CPU."""


class Ranks:
    """The process group of one node, which torch.distributed has as its default group."""

    def __init__(
        self,
        store: Store | None,
        rank: int,
        size: int,
        here: int | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Meet the others. Raises RankLost if that takes longer than RANKS_MEET_S.

        store: where the ranks find each other; None: where the environment says, as torchrun sets it. here: how many
        of them are on this host, if not all. check: called ten times a second meanwhile; raises what ends the wait.
        """
        self.rank = rank
        self.size = size
        self.here = here or size
        self.is_broken = False
        self.is_sharded = False
        """Whether no rank holds the whole model in a star run."""
        self._rooms: list[tuple[int, int | None]] | None = None
        self._urgent_lock = threading.Lock()
        # gloo has one time limit for meeting and for a paused run, so the shorter one is kept here
        met: Future[None] = Future()
        threading.Thread(target=self._meet, args=(store, met), daemon=True, name="meet").start()
        deadline = time.monotonic() + RANKS_MEET_S
        while not met.done():
            check()
            if time.monotonic() > deadline:
                self.is_broken = True
                raise RankLost(f"{self._lost} (they did not all meet within {RANKS_MEET_S:.0f} s)")
            wait([met], 0.1)
        met.result()

    def _meet(self, store: Store | None, met: Future[None]) -> None:
        try:
            with self._talking():
                backends = BACKENDS if dist.is_nccl_available() else "gloo"
                dist.init_process_group(backends, timeout=IDLE_MAX, store=store, rank=self.rank, world_size=self.size)
                self._heads = dist.new_group(backend="gloo", timeout=IDLE_MAX)
                self._urgent = dist.new_group(backend="gloo", timeout=IDLE_MAX)
            met.set_result(None)
        except Exception as error:  # noqa: BLE001 - the boundary of the thread: the constructor raises it
            met.set_exception(error)

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """Raise RankLost if torch.distributed fails, and from then on at once."""
        if self.is_broken:
            raise RankLost(self._lost)
        try:
            yield
        except RuntimeError as error:
            self.is_broken = True
            raise RankLost(f"{self._lost} ({reason_in(str(error))})") from error

    @property
    def _lost(self) -> str:
        others = "the first one, which leads it," if self.rank else "another one"
        return (
            f"this node is of {self.size} processes, and {others} has ended or cannot be reached, so this one ends; "
            "start the node again, and it goes on from what it has saved"
        )

    # messages

    def tell(self, head: dict[str, Any], tensors: Sequence[Tensor] = ()) -> None:
        """The leader's word to all followers."""
        with self._talking():
            for part in _packed(head, tensors):
                dist.broadcast(part, 0, group=self._heads)

    def hear(self) -> Message:
        """Wait for the leader's next word."""
        with self._talking():
            return _unpacked(lambda part: dist.broadcast(part, 0, group=self._heads))

    def answer(self, head: dict[str, Any], tensors: Sequence[Tensor] = ()) -> None:
        """A follower's word to the leader."""
        with self._talking():
            for part in _packed(head, tensors):
                dist.send(part, 0, group=self._heads)

    def answers(self) -> list[Message]:
        """The answer of each follower, in the order of the ranks."""
        return [self.answer_of(rank) for rank in self.others]

    def answer_of(self, rank: int) -> Message:
        """The answer of one follower, for the leader that does not want all of them in memory."""
        with self._talking():
            return _unpacked(lambda part: dist.recv(part, rank, group=self._heads))

    @contextmanager
    def order(self, head: dict[str, Any], tensors: Sequence[Tensor] = ()) -> Iterator[None]:
        """Tell all followers a job of which the leader does its part inside the block. If that fails, the ranks are
        not at the same place any more."""
        self.tell(head, tensors)
        try:
            yield
        except BaseException:
            self.is_broken = True
            raise

    def rooms(self, memory_max: int | None) -> list[tuple[int, int | None]]:
        """The memory that each follower may use, in bytes: of its host, and of its card or None. Asks them at the first
        call, which must come before the first run begins. memory_max: the volunteer's bound for a host."""
        if self._rooms is None:
            with self.order({"job": ROOM, "memory_max": memory_max}):
                self._rooms = [(head["memory"], head["card"]) for head, _ in self.answers()]
        return self._rooms

    @property
    def others(self) -> range:
        return range(1, self.size)

    def give(self, rank: int, tensor: Tensor) -> None:
        """The leader's tensor, on the CPU, to one follower."""
        with self._talking():
            dist.send(_bytes_of(tensor), rank, group=self._heads)

    def take(self, shape: Sequence[int]) -> Tensor:
        """The leader's float32 tensor for this follower."""
        found = torch.empty(tuple(shape))
        with self._talking():
            dist.recv(_bytes_of(found), 0, group=self._heads)
        return found

    # tensors of all ranks, on any device

    def add_up_at(self, rank: int, tensor: Tensor) -> None:
        """Put the sum of all ranks' tensors into that of one rank. The others' are of no use afterwards."""
        with self._talking():
            dist.reduce(tensor, rank)

    def add_up(self, tensor: Tensor) -> None:
        """Put the sum of all ranks' tensors into each."""
        with self._talking():
            dist.all_reduce(tensor)

    def total(self, number: int) -> int:
        found = torch.tensor([number])
        self.add_up(found)
        return int(found)

    def share(self, rank: int, tensor: Tensor) -> None:
        """Copy one rank's tensor into all others'."""
        with self._talking():
            dist.broadcast(tensor, rank)

    def hand(self, tensor: Tensor) -> None:
        """A follower's tensor to the leader, on the device that both use."""
        if tensor.numel():
            with self._talking():
                dist.send(tensor, 0)

    def accept(self, rank: int, tensor: Tensor) -> None:
        """Receive what a follower hands."""
        if tensor.numel():
            with self._talking():
                dist.recv(tensor, rank)

    # the end

    def on_interrupt(self, interrupt: Callable[[], None]) -> None:
        """Call this on a follower when the leader interrupts what all compute. From a thread of its own."""
        threading.Thread(target=self._await_urgent, args=(interrupt,), daemon=True, name="urgent").start()

    def _await_urgent(self, interrupt: Callable[[], None]) -> None:
        word = torch.tensor([INTERRUPT])
        while True:
            try:
                dist.broadcast(word, 0, group=self._urgent)
            except RuntimeError:
                return  # the leader is gone, as the other thread is about to see
            if int(word) != INTERRUPT:
                return
            interrupt()

    def interrupt(self) -> None:
        """Interrupt what the followers compute. May be called from any thread."""
        self._urge(INTERRUPT)

    def _urge(self, word: int) -> None:
        with self._urgent_lock:
            if not self.is_broken:
                with self._talking():
                    dist.broadcast(torch.tensor([word]), 0, group=self._urgent)

    def end(self) -> None:
        """Let the followers end, if they can still be told."""
        if self.rank == 0 and not self.is_broken:
            try:
                self.tell({"job": END})
                self._urge(NO_MORE)
            except RankLost:
                return
        if not self.is_broken:
            dist.destroy_process_group()


def _packed(head: dict[str, Any], tensors: Sequence[Tensor]) -> Iterator[Tensor]:
    """A message in tensors of bytes: the length of its head, the head, and the tensors."""
    here = [tensor.detach().cpu().contiguous() for tensor in tensors]
    about = [[str(tensor.dtype).removeprefix("torch."), list(tensor.shape)] for tensor in here]
    text = json.dumps([head, about]).encode()
    yield torch.tensor([len(text)])
    yield torch.frombuffer(bytearray(text), dtype=torch.uint8)
    yield from (_bytes_of(tensor) for tensor in here if tensor.numel())


def _unpacked(receive: Callable[[Tensor], Any]) -> Message:
    length = torch.zeros(1, dtype=torch.int64)
    receive(length)
    text = torch.empty(int(length), dtype=torch.uint8)
    receive(text)
    head, about = json.loads(text.numpy().tobytes())
    tensors = [torch.empty(shape, dtype=getattr(torch, dtype)) for dtype, shape in about]
    for tensor in tensors:
        if tensor.numel():
            receive(_bytes_of(tensor))
    return head, tensors


def _bytes_of(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.uint8)
