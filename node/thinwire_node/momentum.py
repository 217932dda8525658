"""DeMo, decoupled momentum (arXiv 2411.19870): the node's own momentum, and what of it is sent.

    m ← β·m + η·P(g)          accumulate; g is the mean gradient since the last cut, P its preconditioning
    C = T(m)                  transform of each tile, in float
    keep the k of largest |C| a tile, zeros never
    m ← m − α·T⁻¹(kept)       what was sent leaves the momentum, the rest stays at home

With `values="vote"` a kept component counts as its sign times the tile's mean kept magnitude, since only its sign
travels; where the contract has the tile's magnitude travel too, times what its code stands for. With `values="float"`
it counts as itself, as in the paper. Any arithmetic will do here: only its owner ever sees the momentum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from thinwire_node.precondition import SecondMoment
from thinwire_proto.contract import DemoSpec
from thinwire_proto.decode import CLIP, TILE_BATCH
from thinwire_proto.magnitudes import coded
from thinwire_proto.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TensorTiles, TileLayout
from thinwire_proto.transform import forward, inverse
from thinwire_proto.votes import Votes

Values = Literal["vote", "float"]
DIRECTION_MAX = 127


@dataclass(frozen=True)
class Sent:
    """What a cut took out of the momentum, so that it can be sent, or put back.

    components: int64 [n], flat in tile space, ascending. values: float32 [n], what each counts as. direction: int8, a
    flat buffer in tile space: the step of an update of these votes alone, in DIRECTION_MAX-ths of the learning rate.
    The cut has it in passing, and it is not kept on disk; nor are the codes, uint8, one for each tile that has votes,
    which say what the values are where magnitudes travel.
    """

    components: Tensor
    values: Tensor
    cut: int
    direction: Tensor | None = None
    codes: Tensor | None = None

    def votes(self) -> Votes:
        codes = None if self.codes is None else self.codes.cpu().numpy()
        return Votes(self.components.cpu().numpy(), (self.values > 0).cpu().numpy(), codes)


class Momentum:
    """The momentum of one node: `buffer`, float32, flat in tile space. The contract says whether what feeds it is
    preconditioned."""

    def __init__(self, layout: TileLayout, spec: DemoSpec, device: torch.device | str, values: Values = "vote") -> None:
        self._layout = layout
        self._spec = spec
        self._values = values
        self._coded = values == "vote" and spec.magnitude == "tile"
        self._cuts = 0
        self.buffer = torch.zeros(layout.components, device=device)
        self._second: SecondMoment | None = None
        if spec.precondition == "adam":
            self._second = SecondMoment(layout, spec.precondition_beta, device)

    @torch.no_grad()
    def accumulate(self, gradients: Mapping[str, Tensor], learning_rate: float, samples: int = 1) -> None:
        """m ← β·m + η·P(g). gradients: by the tensor's name, in its shape; sums over `samples`, and g is their mean."""
        self.buffer.mul_(self._spec.beta)
        if self._second is not None:
            self._second.begin()
        for tensor in self._layout.tensors:
            gradient, rate = gradients[tensor.name], learning_rate / samples
            if self._second is not None:
                gradient, rate = self._second.precondition(tensor.name, gradient / samples), learning_rate
            self._layout.add_into(self.buffer, tensor, gradient, rate)
        self._cuts += 1

    @torch.no_grad()
    def cut(self, k: int) -> Sent:
        """Take the k largest components of each tile out of the momentum."""
        # where magnitudes travel, an update leads by more than signs, and `taken` says where
        direction = None if self._coded else torch.empty_like(self.buffer, dtype=torch.int8)
        parts = []
        for tiles, first in self._batches(self.buffer):
            toward = None if direction is None else direction[first : first + tiles.numel()].view(tiles.shape)
            parts.append(self._cut_batch(tiles, k, first, toward))
        components = torch.cat([part[0] for part in parts])
        values = torch.cat([part[1] for part in parts])
        codes = torch.cat([part[2] for part in parts]) if self._coded else None
        return Sent(components, values, self._cuts, direction, codes)

    def _cut_batch(self, tiles: Tensor, k: int, first: int, toward: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Components and values as in `Sent`, and the codes of the tiles that have votes."""
        coefficients = forward(tiles, self._spec.transform).flatten(1)  # [n, c]
        size = coefficients.shape[1]
        index = self._choose(coefficients, min(k, size)).sort(dim=1).values  # [n, k]
        value = coefficients.gather(1, index)
        codes = torch.empty(0, dtype=torch.uint8, device=value.device)
        if self._values == "vote":
            count = (value != 0).sum(1, keepdim=True).clamp(min=1)
            mean = value.abs().sum(1, keepdim=True) / count
            if self._coded:
                code, mean = coded(mean)
                codes = code[((value != 0) & (mean > 0)).any(1)].flatten()
            value = value.sign() * mean
        sent = torch.zeros_like(coefficients).scatter_(1, index, value).view(tiles.shape)
        taken = inverse(sent, self._spec.transform)
        tiles.sub_(taken, alpha=self._spec.alpha)
        if toward is not None:
            toward.copy_(self._direction_of(taken))
        flat = index + torch.arange(len(tiles), device=index.device)[:, None] * size + first
        voted = value != 0
        return flat[voted], value[voted], codes

    def _choose(self, coefficients: Tensor, k: int) -> Tensor:
        """Which k of each tile's coefficients [n, c] are kept, int64 [n, k]: the largest."""
        return coefficients.abs().topk(k, dim=1, sorted=False).indices

    @torch.no_grad()
    def put_back(self, sent: Sent) -> None:
        """It was not counted: m ← m + βʲ·α·q, for the j cuts since. Nothing that was learned is lost."""
        share = self._spec.alpha * self._spec.beta ** (self._cuts - sent.cut)
        self.buffer.add_(self.taken(sent), alpha=share)

    @torch.no_grad()
    def direction(self, sent: Sent) -> Tensor:
        """See `Sent`; worked out anew for one that was on disk."""
        if sent.direction is not None:
            return sent.direction
        taken = self.taken(sent)
        for tiles, _ in self._batches(taken):
            tiles.copy_(self._direction_of(tiles))
        return taken.to(torch.int8)

    def _direction_of(self, taken: Tensor) -> Tensor:
        """Of tiles [n, 64, 64] or [n, 64]; `taken` may be changed. As exact as looking ahead needs it."""
        if self._spec.magnitude == "sign":
            return taken.sign_().mul_(DIRECTION_MAX)
        unit = CLIP * taken.abs().flatten(1).mean(1).clamp(min=torch.finfo(torch.float32).tiny)
        taken.mul_(DIRECTION_MAX / unit.view(-1, *[1] * (taken.dim() - 1)))
        return taken.clamp_(-DIRECTION_MAX, DIRECTION_MAX).round_()

    @torch.no_grad()
    def taken(self, sent: Sent) -> Tensor:
        """T⁻¹ of what was sent, float32, a flat buffer in tile space."""
        taken = torch.zeros_like(self.buffer)
        taken[sent.components.to(taken.device)] = sent.values.to(taken.device)
        for tiles, _ in self._batches(taken):
            tiles.copy_(inverse(tiles, self._spec.transform))
        return taken

    # what a node keeps on disk, so that a restart costs nothing that was learned

    def state(self) -> dict[str, Tensor]:
        """Copies of all that is learned here, by name."""
        return {name: tensor.clone() for name, tensor in self._tensors().items()}

    def _tensors(self) -> dict[str, Tensor]:
        return {"momentum": self.buffer} | (self._second.tensors() if self._second else {})

    def load(self, state: Mapping[str, Tensor]) -> None:
        for name, tensor in self._tensors().items():
            tensor.copy_(state[name])

    def of(self, tensor: TensorTiles) -> dict[str, Tensor]:
        """What is learned of one tensor, by name; not copies. momentum: its tiles, [n, 64, 64] or [n, 64]."""
        second = self._second.of(tensor.name) if self._second else {}
        return {"momentum": self._layout.tiles_of(self.buffer, tensor)} | second

    def forget(self) -> None:
        for tensor in self._tensors().values():
            tensor.zero_()

    def _batches(self, flat: Tensor) -> list[tuple[Tensor, int]]:
        """Views of a flat buffer as tiles, matrices first: ([n, 64, 64] or [n, 64], first component)."""
        batches: list[tuple[Tensor, int]] = []
        start = 0
        for tiles, size in (
            (self._layout.matrices(flat), MATRIX_COMPONENTS),
            (self._layout.vectors(flat), VECTOR_COMPONENTS),
        ):
            for place in range(0, len(tiles), TILE_BATCH):
                batch = tiles[place : place + TILE_BATCH]
                batches.append((batch, start))
                start += len(batch) * size
        return batches
