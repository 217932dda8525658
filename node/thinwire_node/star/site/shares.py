"""The share of one rank: its range of tiles, and the momentum and the replica that are divided by ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from thinwire.compression.momentum import Momentum
from thinwire.compression.sent import Sent
from thinwire.compression.tile_range import TileRange, tile_ranges
from thinwire_node.training.ranks import Ranks
from thinwire_proto.contract import DemoSpec, MergedMuonSpec
from thinwire_proto.exact.apply import apply_votes
from thinwire_proto.exact.fingerprint import fingerprint
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.update import Update


class Shares:
    """The ranges of all ranks, and what they send each other of whole tensors."""

    def __init__(self, layout: TileLayout, ranks: Ranks) -> None:
        self.ranks = ranks
        self.layout = layout
        self.ranges = tile_ranges(layout, ranks.size)

    @property
    def own(self) -> TileRange:
        return self.ranges[self.ranks.rank]

    def add_up(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The own range of the sum of all ranks' tensors: flat, as `TileRange.cut` has it."""
        for rank, of_rank in enumerate(self.ranges):
            flat = of_rank.cut(tensors)
            if flat.numel():
                self.ranks.add_up_at(rank, flat)
            if rank == self.ranks.rank:
                own = flat
        return own

    def share(self, own: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Put all ranks' ranges together in whole tensors. own: flat, as `TileRange.cut` has it."""
        for rank, of_rank in enumerate(self.ranges):
            size = of_rank.layout.parameters
            flat = own if rank == self.ranks.rank else torch.empty(size, device=own.device)
            if size:
                self.ranks.share(rank, flat)
            of_rank.put(flat, tensors)

    def collect(self, own: Tensor, tensors: Mapping[str, Tensor] | None) -> None:
        """Put all ranks' ranges together in the leader's whole tensors, which may be on another device. own: as in
        `share`. tensors: None on a follower."""
        if tensors is None:
            self.ranks.hand(own)
            return
        self.own.put(own, tensors)
        for rank in self.ranks.others:
            flat = torch.empty(self.ranges[rank].layout.parameters, device=own.device)
            self.ranks.accept(rank, flat)
            self.ranges[rank].put(flat, tensors)

    def join_momentum(self, parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
        """The tensors of the whole momentum, on the CPU, as `Momentum.tensors` names them. parts: of all ranks."""
        found = {name: tensor.cpu() for name, tensor in parts[0].items()}
        found["coefficients"] = torch.cat([part["coefficients"].cpu() for part in parts])
        if "second" in found:
            found["second"] = torch.empty(self.layout.parameters)
            tensors = self.layout.unflattened(found["second"])
            for of_rank, part in zip(self.ranges, parts, strict=True):
                of_rank.put(part["second"].cpu(), tensors)
        return found

    def cut_momentum(self, whole: Mapping[str, Tensor], rank: int) -> dict[str, Tensor]:
        """A rank's part of what `join_momentum` returns."""
        of_rank, found = self.ranges[rank], dict(whole)
        found["coefficients"] = whole["coefficients"][of_rank.components].clone()
        if "second" in whole:
            found["second"] = of_rank.cut(self.layout.unflattened(whole["second"]))
        return found


class RangeMomentum(Momentum):
    """The momentum of a rank's range, in the range's own tile space.

    has_sums: the gradients of the ranks are of different samples and add up. Otherwise all ranks have the same.
    """

    def __init__(self, shares: Shares, spec: DemoSpec, device: torch.device | str, *, has_sums: bool) -> None:
        super().__init__(shares.own.layout, spec, device)
        self._shares = shares
        self._has_sums = has_sums

    @torch.no_grad()
    def accumulate_and_extract(
        self, gradients: Mapping[str, Tensor], learning_rate: float, samples: int, k: int
    ) -> Sent:
        """gradients: whole ones, of this rank's samples."""
        own = self._shares.own
        if self._has_sums:
            flat, total = self._shares.add_up(gradients), torch.tensor([samples])
            self._shares.ranks.add_up(total)
            samples = int(total)
        else:
            flat = own.cut(gradients)
        return super().accumulate_and_extract(own.layout.unflattened(flat), learning_rate, samples, k)


class SharedReplica(Replica):
    """A replica that each rank holds whole, and of which each applies its range. All ranks must call `apply`."""

    def __init__(self, replica: Replica, shares: Shares) -> None:
        super().__init__(replica.contract, replica.state, replica.step, replica.head, is_checked=True)
        self.shares = shares

    def _change(self, update: Update) -> None:
        contract = self.contract
        if isinstance(contract.rule, MergedMuonSpec):  # its step is of whole matrices
            super()._change(update)
            return
        own = self.shares.own
        flat = own.cut(self.tensors)
        apply_votes(
            own.layout.unflattened(flat),
            own.of_merged(update.merged),
            own.layout,
            contract.demo,
            learning_rate=update.learning_rate,
            decay=update.decay,
            step=update.step,
        )
        self.shares.share(flat, self.tensors)

    def share_of_fingerprint(self, nonce: int) -> int:
        """The fingerprint of this rank's part of each tensor. Those of all ranks add up, modulo 2⁶⁴."""
        flat = [tensor.view(-1) for tensor in self.state.values()]
        rank, size = self.shares.ranks.rank, self.shares.ranks.size
        firsts = [len(tensor) * rank // size for tensor in flat]
        stops = [len(tensor) * (rank + 1) // size for tensor in flat]
        return fingerprint(
            (tensor[first:stop] for tensor, first, stop in zip(flat, firsts, stops, strict=True)), nonce, firsts
        )
