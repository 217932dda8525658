"""Iterations that a rank has begun, and what mixing does with their messages.

`Turns` is one interface for both: `pending` for edges with both ends, `pushed` for one-way ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from thinwire.gossip.flat import Buffers
from thinwire_proto.gossip.iteration import Turn

TOPOLOGY_NUMBER = 0
"""The topology of a Gossip never changes."""
Key = tuple[int, int]
"""Iteration and peer."""


class Arrived(NamedTuple):
    """A message that is not decoded: the first `size` bytes of a buffer. may_be_mixed: by the rules of
    `IterationMachine`; a void turn is not."""

    iteration: int
    peer: int
    buffer: Tensor
    size: int
    may_be_mixed: bool = True


class Mixed(NamedTuple):
    """Numbers of messages that were mixed, and of those among them that came in a later iteration than theirs."""

    messages: int
    late: int


class Edges(NamedTuple):
    """The edges of an iteration. sources: peers whose messages will be mixed, and their weights in the topology.
    targets: peers to send to; all_targets: with those that do not keep up, and get nothing."""

    sources: dict[int, float]
    targets: list[int]
    all_targets: list[int]


@dataclass
class Launched:
    """An iteration that this rank has begun.

    weights: of the edges whose turn is open, by peer. messages: what each target is sent. own: what an edge with both
    ends knows of this rank; it may be the snapshot, a buffer of the parameters."""

    weights: dict[int, float]
    snapshot: Tensor | None = None
    own: dict[int, Tensor] = field(default_factory=dict)
    messages: dict[int, Tensor] = field(default_factory=dict)
    unsent: int = 0


@dataclass
class Traffic:
    """Totals since the exchange was made. mixed: turns; late: those of them that were mixed in a later iteration."""

    mixed: int = 0
    late: int = 0
    waited_s: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0


class HostCopies:
    """Copies of messages in host memory, from where gloo sends them. A copy from a GPU is only queued at first."""

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers

    def copy(self, message: Tensor) -> tuple[Callable[[], Tensor], Callable[[], None]]:
        """Functions that wait for the copy and return it, and that give its buffer back."""
        if message.device.type == "cpu":
            return lambda: message, lambda: None
        if message.device.type != "cuda":
            copied = message.cpu()
            return lambda: copied, lambda: None
        hosted = self._buffers.take()
        hosted[: message.numel()].copy_(message, non_blocking=True)
        done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()

        def wait() -> Tensor:
            done.synchronize()
            return hosted[: message.numel()]

        return wait, lambda: self._buffers.give(hosted)


class Turns(Protocol):
    """All methods are called by the thread that trains.

    message_bytes_max: bound on a message. arriving: the buffers of messages that come; they are given back here."""

    message_bytes_max: int
    arriving: Buffers

    @property
    def weight(self) -> float | None:
        """That of this rank's parameters in the mean of all ranks. None: all ranks count alike."""

    def launch(self, sources: Mapping[int, float], targets: Collection[int]) -> Launched:
        """Messages of the parameters as they are now. sources: the peers whose messages will be mixed, and their
        weights. targets: the peers to send to."""

    def begin(self, iteration: int, launched: Launched) -> None:
        """An iteration begins."""

    def receive(self, messages: Iterable[Arrived]) -> None:
        """Take messages in the order in which they came, also those of void turns. An early one comes only at the end
        of the run, and only over one-way edges."""

    def mix(self, turns: Iterable[Turn], iteration: int, factor: float) -> Mixed:
        """Mix these turns into the parameters, and what a loaded state has brought. iteration: the newest that was
        begun. factor: the fraction of the way to go."""

    def keep(self, alive: set[Key]) -> None:
        """Forget all turns but these, and those whose message is in: they were mixed, or are void."""

    def sent(self, iteration: int, launched: Launched) -> None:
        """One of the iteration's messages is sent, and its buffer free."""

    def drop(self) -> None:
        """Let what is pending add nothing. The parameters were replaced by the mean of all ranks."""

    def state(self, iteration: int, open_turns: Sequence[Turn], early: Sequence[Arrived]) -> dict[str, Any]:
        """All of it, as tensors and numbers. open_turns: those whose message is sent after the save. early:
        the messages of turns that have not begun. Leaves all pending."""

    def load(self, state: Mapping[str, Any]) -> Iterator[tuple[int, Launched]]:
        """Take a state, and yield the iterations to begin again."""

    def early(self, state: Mapping[str, Any]) -> list[Arrived]:
        """The messages in a state of turns that had not begun when it was saved."""

    def awaited(self, state: Mapping[str, Any]) -> set[Key]:
        """The messages that peers send again once they have loaded their own states."""
