"""An update as the signs that its votes come to, where that is smaller than the votes: one bit a parameter.

Only where parameters step by signs alone (`demo.magnitude = "sign"`). Many nodes with a k of their own each choose so
many components of a tile that to say which costs more than to say, of each parameter, which way it goes. The
coordinator works the signs out, by the decode that everybody has, so to the bit it is the same update.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from thinwire_proto.apply import whole_tiles
from thinwire_proto.codec import ENVELOPE_BYTES_MAX, Update, encode_update
from thinwire_proto.contract import DemoSpec
from thinwire_proto.decode import TILE_BATCH, directions
from thinwire_proto.tiles import TileLayout, untile
from thinwire_proto.votes import Merged, Signs


def encode_smaller(update: Update, layout: TileLayout, demo: DemoSpec) -> tuple[bytes, str]:
    """An update as votes, or as signs where the contract can have them and they are smaller; and which: `votes` or
    `signs`. With k_down it stays votes, which say to nodes what was left out of theirs."""
    votes = encode_update(update, layout)
    size_max = layout.parameters // 8 + layout.tiles // 8 + ENVELOPE_BYTES_MAX
    if demo.magnitude == "sign" and not demo.k_down and isinstance(update.merged, Merged) and len(votes) > size_max:
        signs = signs_of(update.merged, layout, demo.transform, update.step)
        return encode_update(replace(update, merged=signs), layout), "signs"
    return votes, "votes"


@torch.no_grad()
def signs_of(merged: Merged, layout: TileLayout, transform: str, step: int) -> Signs:
    """What merged votes come to, in the step θ_step to θ_{step+1}."""
    scaled, rates = whole_tiles(merged, layout, 1.0, torch.device("cpu"))
    positive = {tensor.name: np.zeros(tensor.rows * tensor.columns, np.bool_) for tensor in layout.tensors}
    for batch in layout.batches(TILE_BATCH):
        ahead = directions(layout.tiles_of_batch(scaled, batch), transform, step) > 0
        for part in batch.parts:
            rows = min(part.rows.stop, part.tensor.rows) - part.rows.start
            place = slice(part.rows.start * part.tensor.columns, (part.rows.start + rows) * part.tensor.columns)
            positive[part.tensor.name][place] = untile(ahead[part.tiles], part.tensor, rows).reshape(-1).numpy()
    stepped = (rates > 0).numpy()
    chosen = [positive[tensor.name][layout.in_tiles(tensor, stepped).reshape(-1)] for tensor in layout.tensors]
    return Signs(stepped, np.concatenate(chosen))
