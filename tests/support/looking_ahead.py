"""The change of the parameters by an update with the votes of one node alone, which that node looks ahead to."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire.compression.momentum import Momentum
from thinwire.compression.sent import Sent
from thinwire_proto.exact.tiles import Batch, TileLayout


def looked_ahead(momentum: Momentum, sent: Sent, layout: TileLayout) -> Tensor:
    """Return that change at a rate of 0.5, as a flat buffer in tile space."""
    flat = torch.zeros(layout.components)

    def put(batch: Batch, change: Tensor) -> None:
        (layout.matrices if batch.is_matrix else layout.vectors)(flat)[batch.tiles] = change

    momentum.decode_changes(put, sent, 0.5)
    return flat
