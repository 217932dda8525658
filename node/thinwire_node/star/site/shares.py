"""The share of one rank: its range of tiles, and the momentum and the replica that are divided by ranges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from thinwire.compression.momentum import Momentum
from thinwire.compression.sent import Sent
from thinwire.compression.tile_range import TileRange, tile_ranges
from thinwire_node.training.ranks import Ranks
from thinwire_proto.contract import DemoSpec, MergedMuonSpec, Parameter
from thinwire_proto.contract.rules import RuleSpec
from thinwire_proto.exact.apply import apply_votes
from thinwire_proto.exact.fingerprint import fingerprint_of_pieces
from thinwire_proto.exact.mapped import scratch
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import TileLayout, layout_of
from thinwire_proto.exact.update import Update

COEFFICIENTS = "coefficients"
"""The name in a rule's state of what has a number for each component of the tile space."""


class Shares:
    """The ranges of all ranks, and what they send each other of whole tensors. rule: of the run; None: one that divides
    all parameters."""

    def __init__(self, layout: TileLayout, ranks: Ranks, rule: RuleSpec | None = None) -> None:
        self.ranks = ranks
        self.layout = layout
        parameters = [Parameter(name=one.name, shape=one.shape) for one in layout.tensors]
        undivided = rule.undivided(parameters) if rule is not None else set()
        self.ranges = tile_ranges(layout, ranks.size, undivided)
        matrices, others = ([one for one in parameters if (one.name in undivided) is of_it] for of_it in (True, False))
        of_others = layout_of(tuple(others))
        self._of_state = {"first": of_others, "second": of_others, "inner": layout_of(tuple(matrices)), "outer": layout}
        """The parameters for which a tensor of a rule's state has numbers, by its name."""

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

    def collect(self, own: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Put all ranks' ranges together in the leader's whole tensors, which may be on another device, a piece at a
        time. The others `hand_over` theirs. own: as in `share`."""
        self.own.put(own, tensors)
        for rank in self.ranks.others:
            for band in self.ranges[rank].bands(tensors):
                piece = torch.empty(band.shape, device=own.device)
                self.ranks.accept(rank, piece)
                band.copy_(piece)

    def hand_over(self, own: Tensor) -> None:
        for piece in self.own.layout.unflattened(own).values():
            self.ranks.hand(piece)

    def whole_state(self, own: Mapping[str, Tensor], folder: Path) -> dict[str, Tensor]:
        """The tensors of a rule's whole state, on the CPU, for `put_state`. Those that are divided are in a file in
        `folder`, which goes with them. own: of this rank. Raises OSError."""
        sizes = {COEFFICIENTS: self.layout.components}
        sizes |= {name: layout.parameters for name, layout in self._of_state.items()}
        alike = {name: tensor.cpu() for name, tensor in own.items() if name not in sizes}
        return alike | scratch({name: (size,) for name, size in sizes.items() if name in own}, folder)

    def put_state(self, part: Mapping[str, Tensor], rank: int, whole: Mapping[str, Tensor]) -> None:
        """Write a rank's part into the tensors of a whole state."""
        whole[COEFFICIENTS][self.ranges[rank].components].copy_(part[COEFFICIENTS])
        for name in self._of_state.keys() & whole.keys():
            self.ranges[rank].put(part[name], self._of_state[name].unflattened(whole[name]))

    def cut_state(self, name: str, whole: Tensor, rank: int) -> Tensor:
        """A rank's part of a tensor of a whole state, in memory of its own."""
        of_rank = self.ranges[rank]
        if name in self._of_state:
            return of_rank.cut(self._of_state[name].unflattened(whole))
        return (whole[of_rank.components] if name == COEFFICIENTS else whole).clone()


class RangeMomentum(Momentum):
    """The momentum of a rank's range, in the range's own tile space.

    cut: the range's part of whole gradients, flat; None: they are of the range alone. adds_up: the ranks have different
    samples. Otherwise all have the same."""

    def __init__(
        self,
        shares: Shares,
        spec: DemoSpec,
        device: torch.device | str,
        cut: Callable[[Mapping[str, Tensor]], Tensor] | None = None,
        *,
        adds_up: bool = True,
    ) -> None:
        super().__init__(shares.own.layout, spec, device)
        self._ranks = shares.ranks
        self._cut = cut
        self._adds_up = adds_up

    @torch.no_grad()
    def accumulate_and_extract(
        self, gradients: Mapping[str, Tensor], learning_rate: float, samples: int, k: int
    ) -> Sent:
        """samples: of this rank."""
        if self._cut is not None:
            gradients = self._layout.unflattened(self._cut(gradients))
        samples = self._ranks.total(samples) if self._adds_up else samples
        return super().accumulate_and_extract(gradients, learning_rate, samples, k)


class DividedReplica(Replica, ABC):
    """A replica of which each rank applies its range. All ranks must call `apply`."""

    shares: Shares

    @abstractmethod
    def share_of_fingerprint(self, nonce: int) -> int:
        """The fingerprint of this rank's part. Those of all ranks add up, modulo 2⁶⁴."""

    def _change_range(self, tensors: Mapping[str, Tensor], update: Update) -> None:
        """Apply the range's part of an update. tensors: of the range."""
        own, rate, decay = self.shares.own, update.learning_rate, update.decay
        merged, demo, step = own.of_merged(update.merged), self.contract.demo, update.step
        apply_votes(tensors, merged, own.layout, demo, learning_rate=rate, decay=decay, step=step)


class SharedReplica(DividedReplica):
    """A replica that each rank holds whole."""

    def __init__(self, replica: Replica, shares: Shares) -> None:
        super().__init__(replica.contract, replica.state, replica.step, replica.head, is_checked=True)
        self.shares = shares

    def _change(self, update: Update) -> None:
        if isinstance(self.contract.rule, MergedMuonSpec):  # its step is of whole matrices
            super()._change(update)
            return
        own = self.shares.own
        flat = own.cut(self.tensors)
        self._change_range(own.layout.unflattened(flat), update)
        self.shares.share(flat, self.tensors)

    def share_of_fingerprint(self, nonce: int) -> int:
        rank, size = self.shares.ranks.rank, self.shares.ranks.size
        pieces = []
        for number, tensor in enumerate(self.state.values()):
            first, stop = (tensor.numel() * edge // size for edge in (rank, rank + 1))
            pieces.append((number, first, tensor.view(-1)[first:stop]))
        return fingerprint_of_pieces(pieces, nonce)
