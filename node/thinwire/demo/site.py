"""The ranks of a site: those that share parameters by FSDP2, and what they say to each other beside the exchange.

Sites exchange as whole ranks do: each rank with those that hold the same shards at the other sites.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from thinwire.demo.shards import chunk
from thinwire.placement import local
from thinwire_proto.exact.fingerprint import fingerprint_of_pieces

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

SHARD_LATER = "create DeMo after fully_shard, or leave the model unwrapped"


class Site:
    """mesh: of one dimension, over which `fully_shard` has sharded the parameters."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        self.group: dist.ProcessGroup = mesh.get_group()
        self.ranks = dist.get_world_size(self.group)
        self.rank = dist.get_rank(self.group)

    def largest(self, values: Sequence[float], device: torch.device) -> list[float]:
        """The largest of each value that any rank has. Waits for the device."""
        found = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self.group)
        return [float(value) for value in found.tolist()]

    def exchange(
        self, outgoing: Sequence[Sequence[Tensor]], incoming: Sequence[Sequence[Tensor]], device: torch.device
    ) -> None:
        """Copy tensors to other ranks, in one all-to-all. All ranks must call it.

        outgoing: for each rank, what it gets, float32, in any shapes. incoming: for each rank, where to write what it
        sends: as many tensors of the same sizes, in the same order.
        """
        for there, here in zip(outgoing[self.rank], incoming[self.rank], strict=True):
            here.copy_(there.reshape(here.shape))
        sent, received = self._others(outgoing), self._others(incoming)
        flat = [tensor.reshape(-1) for of_rank in sent for tensor in of_rank]
        message = torch.cat(flat) if flat else torch.empty(0, device=device)
        send, receive = ([sum(map(Tensor.numel, of_rank)) for of_rank in tensors] for tensors in (sent, received))
        answer = torch.empty(sum(receive), device=device)
        dist.all_to_all_single(answer, message, receive, send, group=self.group)
        places = [tensor for of_rank in received for tensor in of_rank]
        parts = answer.split_with_sizes([tensor.numel() for tensor in places])
        for here, part in zip(places, parts, strict=True):
            here.copy_(part.view(here.shape))

    def fingerprint(self, parameters: Sequence[Tensor]) -> int:
        """The fingerprint of this rank's shards. Those of all ranks add up, modulo 2⁶⁴, to that of the parameters."""
        firsts = (chunk(len(p), self.ranks, self.rank).start * prod(p.shape[1:]) for p in parameters)
        pieces = ((number, first, local(p)) for number, (first, p) in enumerate(zip(firsts, parameters, strict=True)))
        return fingerprint_of_pieces(pieces, 0)

    def _others(self, tensors: Sequence[Sequence[Tensor]]) -> list[Sequence[Tensor]]:
        return [[] if rank == self.rank else of_rank for rank, of_rank in enumerate(tensors)]
