"""An iteration that a rank begins, with its edges, and copies of its messages in host memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from thinwire.gossip.flat import Buffers


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
    ends knows of this rank; it may be the snapshot, a buffer of the parameters.
    """

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
