"""Everybody's bytes to everybody, in one collective of torch.distributed.

The problem: contributions differ in size, and an all-gather wants equal ones. To ask for the sizes first costs a
second round trip; to pad to the largest size that could be costs a third more bytes than votes need.

The sketch: sizes hardly change from one exchange to the next, and everybody sees everybody's. So the capacity of the
next exchange follows from the sizes seen so far, alike on all ranks, with a little room. Whose bytes do not fit sends
their size and as many as do; all see that, and exchange once more with room for all. The first exchange starts from a
capacity that depends on nothing, so ranks that disagree about everything else can still talk about it.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.distributed as dist

CAPACITY_FIRST = 1024
HEAD_BYTES = 8  # the size, little-endian
_ON_CPU = ("gloo", "mpi", "undefined")  # "undefined": a backend for each kind of device, gloo for the CPU


class Exchange:
    """Between the ranks of `group`, or of the default one; none where torch.distributed is not initialised.

    bytes_sent, bytes_received: of all exchanges so far, padding included. A rank sends its bytes once for every other
    rank, as the rings of gloo and NCCL do.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self._capacity = CAPACITY_FIRST
        self.bytes_sent = 0
        self.bytes_received = 0

    @property
    def ranks(self) -> int:
        there = dist.is_available() and dist.is_initialized()
        return dist.get_world_size(self._group) if there else 1

    def gather(self, data: bytes, device: torch.device) -> list[bytes]:
        """The bytes of all ranks, in their order. device: where parameters are; NCCL exchanges nothing else."""
        if self.ranks == 1:
            return [data]
        sizes, gathered = self._gather_once(data, device)
        needed = max(sizes)
        if needed > self._capacity:
            self._capacity = needed
            sizes, gathered = self._gather_once(data, device)
        # what all ranks work out alike from what all have seen; it shrinks slowly, since a small size is an exception
        self._capacity = max(needed + needed // 32 + 64, self._capacity - self._capacity // 8)
        return [row[:size].tobytes() for row, size in zip(gathered, sizes, strict=True)]

    def _gather_once(self, data: bytes, device: torch.device) -> tuple[list[int], list[np.ndarray]]:
        """The sizes of all, and of each as many bytes as the capacity holds."""
        framed = np.zeros(HEAD_BYTES + self._capacity, np.uint8)
        framed[:HEAD_BYTES] = np.frombuffer(len(data).to_bytes(HEAD_BYTES, "little"), np.uint8)
        fits = data[: self._capacity]
        framed[HEAD_BYTES : HEAD_BYTES + len(fits)] = np.frombuffer(fits, np.uint8)
        # in memory of torch's own: gloo's threads may let go of it when Python is no more there to be asked
        ours = torch.from_numpy(framed).clone()
        if dist.get_backend(self._group) not in _ON_CPU:
            ours = ours.to(device)
        everybody = [torch.empty_like(ours) for _ in range(self.ranks)]
        dist.all_gather(everybody, ours, group=self._group)
        self.bytes_sent += (self.ranks - 1) * len(framed)
        self.bytes_received += (self.ranks - 1) * len(framed)
        rows = torch.stack(everybody).cpu().numpy()
        sizes = [int.from_bytes(row[:HEAD_BYTES].tobytes(), "little") for row in rows]
        return sizes, [row[HEAD_BYTES:] for row in rows]
