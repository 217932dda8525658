"""An update in sign form: the step directions that its votes lead to, one bit a parameter, where that is smaller.

Only for contracts that step by signs alone (`demo.magnitude = "sign"`). When many nodes choose different components,
listing the chosen components costs more than one direction bit for each parameter. The coordinator computes the signs
with the exact decode, so the resulting step has the same bits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire_proto.contract import DemoSpec
from thinwire_proto.exact.apply import decode_changes
from thinwire_proto.exact.tiles import Batch, TileLayout
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Levels, Merged, Signs, counts_of
from thinwire_proto.wire.codec import ENVELOPE_BYTES_MAX, encode_update


def encode_smaller(update: Update, layout: TileLayout, demo: DemoSpec) -> tuple[bytes, str]:
    """Encode an update as votes, or as signs if the contract allows that and it is smaller; returns also which form it
    is.

    The form is `votes`, `signs`, or `levels` for a contract with update_levels. With update_topk it is always `votes`,
    because nodes read from the votes which of their components were dropped.
    """
    votes, merged = encode_update(update, layout), update.merged
    if isinstance(merged, Levels):
        return votes, "levels"
    if demo.magnitude == "sign" and not demo.update_topk and isinstance(merged, Merged):
        signs_bytes = (layout.parameters_in(_stepped(merged, layout)) + layout.tiles) // 8 + ENVELOPE_BYTES_MAX
        if signs_bytes < len(votes):
            signs = signs_of(merged, layout, update.step)
            return encode_update(replace(update, merged=signs), layout), "signs"
    return votes, "votes"


@torch.no_grad()
def signs_of(merged: Merged, layout: TileLayout, step: int) -> Signs:
    """The step directions of merged votes, for the step from θ_step to θ_{step+1}."""
    demo = DemoSpec(magnitude="sign")
    positive = {tensor.name: torch.zeros(tensor.shape, dtype=torch.bool) for tensor in layout.tensors}

    def note_signs(batch: Batch, change: Tensor) -> None:
        for part in batch.parts:
            for tensor_piece, tiles_piece in part.pieces(part.band(positive[part.tensor.name]), change):
                tensor_piece.copy_(tiles_piece > 0)

    decode_changes(note_signs, merged, layout, demo, learning_rate=1.0, step=step, device=torch.device("cpu"))
    stepped = _stepped(merged, layout)
    chosen = [
        positive[tensor.name].view(-1).numpy()[layout.in_tiles(tensor, stepped).reshape(-1)]
        for tensor in layout.tensors
    ]
    return Signs(stepped, np.concatenate(chosen))


def _stepped(merged: Merged, layout: TileLayout) -> npt.NDArray[np.bool_]:
    """Mask of the tiles that have votes, bool [tiles]."""
    return counts_of(merged.components, layout) > 0
