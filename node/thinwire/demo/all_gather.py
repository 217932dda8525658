"""All-gather of byte strings of different sizes, with torch.distributed.

The problem: contributions differ in size, but an all-gather needs equal sizes. Exchanging the sizes first costs a
second round trip. Padding to the largest possible size costs a third more bytes than votes need.

The sketch: sizes hardly change from one exchange to the next, and every rank sees all sizes. So the capacity of the
next exchange follows from the sizes seen so far, equally on all ranks, plus a small margin. A rank whose bytes do not
fit sends their size and as many bytes as fit. All ranks see this, and repeat the exchange with enough capacity. The
first exchange uses a fixed capacity, so ranks that disagree about everything else can still report it.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

from thinwire.script import check_alone

CAPACITY_FIRST = 1024
HEAD_BYTES = 8  # the size, little-endian
_ON_CPU = ("gloo", "mpi", "undefined")  # "undefined": one backend for each device type, gloo for the CPU


def _is_initialised() -> bool:
    return dist.is_available() and dist.is_initialized()


class AllGather:
    """All-gather between the ranks of `group` or the default group. Without torch.distributed, this process is the only
    rank.

    is_alone: this process is the only rank, whatever the ranks of torch.distributed.

    bytes_sent, bytes_received: totals of all exchanges, including padding. A rank sends its bytes once for every other
    rank, as the rings of gloo and NCCL do."""

    def __init__(self, group: dist.ProcessGroup | None = None, *, is_alone: bool = False) -> None:
        self._group = group
        self._is_alone = is_alone
        self._capacity = CAPACITY_FIRST
        self.bytes_sent = 0
        self.bytes_received = 0

    @property
    def ranks(self) -> int:
        return dist.get_world_size(self._group) if _is_initialised() and not self._is_alone else 1

    def check(self) -> None:
        """Raise ConfigError if this process is one of several that have no process group."""
        if not _is_initialised():
            check_alone("DeMo")

    def gather(self, data: bytes, device: torch.device) -> list[bytes]:
        """The bytes of all ranks, in rank order. device: of the parameters; NCCL can exchange only from there."""
        if self.ranks == 1:
            return [data]
        sizes, gathered = self._gather_once(data, device)
        needed = max(sizes)
        if needed > self._capacity:
            self._capacity = needed
            sizes, gathered = self._gather_once(data, device)
        # All ranks compute the same capacity. It shrinks slowly, because a small size is an exception.
        self._capacity = max(needed + needed // 32 + 64, self._capacity - self._capacity // 8)
        return [row[:size].tobytes() for row, size in zip(gathered, sizes, strict=True)]

    def _gather_once(self, data: bytes, device: torch.device) -> tuple[list[int], list[np.ndarray]]:
        """The sizes of all ranks, and as many bytes of each as the capacity holds."""
        framed = np.zeros(HEAD_BYTES + self._capacity, np.uint8)
        framed[:HEAD_BYTES] = np.frombuffer(len(data).to_bytes(HEAD_BYTES, "little"), np.uint8)
        fits = data[: self._capacity]
        framed[HEAD_BYTES : HEAD_BYTES + len(fits)] = np.frombuffer(fits, np.uint8)
        # in torch's own memory: gloo's threads may release it after the Python interpreter has ended
        message = torch.from_numpy(framed).clone()
        if dist.get_backend(self._group) not in _ON_CPU:
            message = message.to(device)
        gathered = [torch.empty_like(message) for _ in range(self.ranks)]
        dist.all_gather(gathered, message, group=self._group)
        self.bytes_sent += (self.ranks - 1) * len(framed)
        self.bytes_received += (self.ranks - 1) * len(framed)
        rows = torch.stack(gathered).cpu().numpy()
        sizes = [int.from_bytes(row[:HEAD_BYTES].tobytes(), "little") for row in rows]
        return sizes, [row[HEAD_BYTES:] for row in rows]
