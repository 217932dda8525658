"""`Sent` is what an extraction removed from the momentum. It is sent, and put back if it is not counted."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS
from thinwire_proto.exact.votes import Votes, WholeVotes


@dataclass(frozen=True)
class Sent:
    """The part that one extraction removed from the momentum.

    components: int64 [n], flat in tile space, ascending. values: float32 [n], the value of each vote. extraction: its
    number. codes: uint8, with magnitudes one for each tile that has votes; not saved to disk, since only `values` are
    needed to put it back.
    """

    components: Tensor
    values: Tensor
    extraction: int
    codes: Tensor | None = None

    def __len__(self) -> int:
        return len(self.components)

    def votes(self) -> Votes:
        codes = None if self.codes is None else self.codes.cpu().numpy()
        return Votes(self.components.cpu().numpy(), (self.values > 0).cpu().numpy(), codes)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to save, by name. `sent_from` makes them a `Sent` again."""
        return {"components": self.components, "values": self.values}


class WholeSent(Sent):
    """All components of some tiles, in a byte each in place of twelve. The other form is made when it is asked for.

    signs: int8 [components], 1 or −1, and 0 in the other tiles. sizes: float32 [tiles], the size of each tile's votes.
    """

    signs: Tensor
    sizes: Tensor

    def __init__(self, signs: Tensor, sizes: Tensor, extraction: int, codes: Tensor | None = None) -> None:
        for name, value in (("signs", signs), ("sizes", sizes), ("extraction", extraction), ("codes", codes)):
            object.__setattr__(self, name, value)

    @property
    def components(self) -> Tensor:
        return self.signs.nonzero().view(-1)

    @property
    def values(self) -> Tensor:
        vectors = (MATRIX_COMPONENTS * len(self.sizes) - len(self.signs)) // (MATRIX_COMPONENTS - VECTOR_COMPONENTS)
        size = torch.full((len(self.sizes),), MATRIX_COMPONENTS, device=self.sizes.device)
        size[len(size) - vectors :] = VECTOR_COMPONENTS
        return (self.signs * self.sizes.repeat_interleave(size))[self.components]

    def __len__(self) -> int:
        return int(torch.count_nonzero(self.signs))

    def votes(self) -> Votes:
        assert self.codes is not None
        return WholeVotes(self.signs.cpu().numpy(), self.codes.cpu().numpy())

    def tensors(self) -> dict[str, Tensor]:
        return {"signs": self.signs, "sizes": self.sizes}


def sent_from(tensors: dict[str, Tensor], prefix: str, extraction: int) -> Sent:
    """Remove the tensors of a `Sent` from `tensors`, where their names begin with `prefix`, and return it. Raises
    KeyError."""
    if prefix + "signs" in tensors:
        return WholeSent(tensors.pop(prefix + "signs"), tensors.pop(prefix + "sizes"), extraction)
    return Sent(tensors.pop(prefix + "components"), tensors.pop(prefix + "values"), extraction)
