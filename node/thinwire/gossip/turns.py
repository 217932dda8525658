"""What mixing does with the messages of a rank, behind one interface: `pending` for edges with both ends, `pushed` for
one-way ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from thinwire.gossip.flat import Buffers
from thinwire.gossip.launched import Launched
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


class Turns(Protocol):
    """All methods are called by the thread that trains.

    message_bytes_max: bound on a message. arriving: the buffers of messages that come; they are given back here.
    """

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
