"""`Sent` is what an extraction removed from the momentum. It is sent, and put back if it is not counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS
from thinwire_proto.exact.votes import Votes, WholeVotes
from thinwire_proto.out_of_memory import retry_out_of_memory

Fill = Callable[[Tensor], object]
"""Writes the values of a batch of tiles into a float32 tensor of their shape, 0 where nothing was sent."""
TILES_AT_ONCE = 1 << 10


@dataclass(frozen=True)
class Sent:
    """The part that one extraction removed from the momentum.

    components: int64 [n], flat in tile space, ascending. values: float32 [n], the value of each vote. extraction: its
    number. codes: uint8, with magnitudes one for each tile that has votes; not saved to disk, since only `values` are
    needed to put it back."""

    components: Tensor
    values: Tensor
    extraction: int
    codes: Tensor | None = None

    def __len__(self) -> int:
        return len(self.components)

    def votes(self) -> Votes:
        codes = None if self.codes is None else self.codes.cpu().numpy()
        return Votes(self.components.cpu().numpy(), (self.values > 0).cpu().numpy(), codes)

    def add_to(self, buffer: Tensor, share: float) -> None:
        """buffer += share · values. buffer: float32 [components of the tile space]."""
        components, values = retry_out_of_memory(partial(self._on, buffer.device))
        buffer.index_add_(0, components, values, alpha=share)

    def _on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        return self.components.to(device), self.values.to(device)

    def fillers(self, firsts: Sequence[int], tiles: Sequence[slice], device: torch.device) -> list[Fill]:
        """A `Fill` for each batch. firsts: the first component of each. tiles: those of each, among all tiles."""
        components, values = self._on(device)
        starts = torch.searchsorted(components, torch.tensor(firsts, device=device)).tolist()

        def filler(first: int, own: slice) -> Fill:
            return lambda into: into.zero_().view(-1).scatter_(0, components[own] - first, values[own])

        return [filler(*place) for place in zip(firsts, map(slice, starts, [*starts[1:], None]), strict=True)]

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to save, by name. `sent_from` makes them a `Sent` again."""
        return {"components": self.components, "values": self.values}


class WholeSent(Sent):
    """All components of some tiles, in a byte each in place of twelve. The other form is made when it is asked for.

    signs: int8 [components], 1 or −1, and 0 in the other tiles; with levels, integers within ±levels. sizes: float32
    [tiles], the size of each tile's votes, or of one level."""

    signs: Tensor
    sizes: Tensor
    levels: int

    def __init__(
        self, signs: Tensor, sizes: Tensor, extraction: int, codes: Tensor | None = None, levels: int = 0
    ) -> None:
        """levels: the contract's `demo.vote_levels`; not saved to disk, like the codes."""
        object.__setattr__(self, "signs", signs)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "extraction", extraction)
        object.__setattr__(self, "codes", codes)
        object.__setattr__(self, "levels", levels)

    @property
    def components(self) -> Tensor:
        return self.signs.nonzero().view(-1)

    @property
    def values(self) -> Tensor:
        whole = torch.zeros(len(self.signs), dtype=torch.float32, device=self.signs.device)
        self.add_to(whole, 1.0)
        return whole[self.components]

    def __len__(self) -> int:
        return int(torch.count_nonzero(self.signs))

    def votes(self) -> Votes:
        assert self.codes is not None
        return WholeVotes(self.signs.cpu().numpy(), self.codes.cpu().numpy(), self.levels)

    def add_to(self, buffer: Tensor, share: float) -> None:
        for tiles, components, size in self._parts():
            added = retry_out_of_memory(partial(self._values, tiles, components, size, buffer.device))
            buffer[components].view(-1, size).add_(added, alpha=share)

    def _values(self, tiles: slice, components: slice, size: int, device: torch.device) -> Tensor:
        """The values of some tiles' components, float32 [tiles, size]."""
        signs, sizes = (of.to(device) for of in (self.signs[components], self.sizes[tiles]))
        return signs.view(-1, size) * sizes[:, None]

    def fillers(self, firsts: Sequence[int], tiles: Sequence[slice], device: torch.device) -> list[Fill]:
        signs, sizes = self.signs.to(device), self.sizes.to(device)

        def filler(first: int, own: slice) -> Fill:
            def fill(into: Tensor) -> None:
                into.copy_(signs[first : first + into.numel()].view(into.shape))
                into.mul_(sizes[own].view(-1, *[1] * (into.dim() - 1)))

            return fill

        return [filler(*place) for place in zip(firsts, tiles, strict=True)]

    def _parts(self) -> Iterator[tuple[slice, slice, int]]:
        """Some tiles at a time, their components, and the components of each."""
        tiles = len(self.sizes)
        vectors = (MATRIX_COMPONENTS * tiles - len(self.signs)) // (MATRIX_COMPONENTS - VECTOR_COMPONENTS)
        component = 0
        for first, end, size in ((0, tiles - vectors, MATRIX_COMPONENTS), (tiles - vectors, tiles, VECTOR_COMPONENTS)):
            for start in range(first, end, TILES_AT_ONCE):
                stop = min(end, start + TILES_AT_ONCE)
                after = component + (stop - start) * size
                yield slice(start, stop), slice(component, after), size
                component = after

    def tensors(self) -> dict[str, Tensor]:
        return {"signs": self.signs, "sizes": self.sizes}


def sent_from(tensors: dict[str, Tensor], prefix: str, extraction: int) -> Sent:
    """Remove the tensors of a `Sent` from `tensors`, where their names begin with `prefix`, and return it. Raises
    KeyError."""
    if prefix + "signs" in tensors:
        return WholeSent(tensors.pop(prefix + "signs"), tensors.pop(prefix + "sizes"), extraction)
    return Sent(tensors.pop(prefix + "components"), tensors.pop(prefix + "values"), extraction)
