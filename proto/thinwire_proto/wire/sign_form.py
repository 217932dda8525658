"""An update as the signs that its votes come to, where that is smaller than the votes: one bit a parameter.

Only where parameters step by signs alone (`demo.magnitude = "sign"`). Many nodes with a k of their own each choose so
many components of a tile that to say which costs more than to say, of each parameter, which way it goes. The
coordinator works the signs out, by the decode that everybody has, so to the bit it is the same update.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from thinwire_proto.contract import DemoSpec
from thinwire_proto.exact.apply import changes
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Merged, Signs, counts_of
from thinwire_proto.wire.codec import ENVELOPE_BYTES_MAX, encode_update


def encode_smaller(update: Update, layout: TileLayout, demo: DemoSpec) -> tuple[bytes, str]:
    """An update as votes, or as signs where the contract can have them and they are smaller; and which: `votes` or
    `signs`. With update_topk it stays votes, which say to nodes what was left out of theirs."""
    votes, merged = encode_update(update, layout), update.merged
    if demo.magnitude == "sign" and not demo.update_topk and isinstance(merged, Merged):
        signs_bytes = (layout.parameters_in(_stepped(merged, layout)) + layout.tiles) // 8 + ENVELOPE_BYTES_MAX
        if signs_bytes < len(votes):
            signs = signs_of(merged, layout, demo.transform, update.step)
            return encode_update(replace(update, merged=signs), layout), "signs"
    return votes, "votes"


@torch.no_grad()
def signs_of(merged: Merged, layout: TileLayout, transform: str, step: int) -> Signs:
    """What merged votes come to, in the step θ_step to θ_{step+1}."""
    demo = DemoSpec.model_validate({"transform": transform, "magnitude": "sign"})
    ahead = {tensor.name: torch.zeros(tensor.shape, dtype=torch.bool) for tensor in layout.tensors}
    for batch, change in changes(merged, layout, demo, learning_rate=1.0, step=step, device=torch.device("cpu")):
        for part in batch.parts:
            for of_tensor, of_tiles in part.pieces(part.band(ahead[part.tensor.name]), change):
                of_tensor.copy_(of_tiles > 0)
    stepped = _stepped(merged, layout)
    chosen = [
        ahead[tensor.name].view(-1).numpy()[layout.in_tiles(tensor, stepped).reshape(-1)] for tensor in layout.tensors
    ]
    return Signs(stepped, np.concatenate(chosen))


def _stepped(merged: Merged, layout: TileLayout) -> npt.NDArray[np.bool_]:
    """Which tiles have votes, bool [tiles]."""
    return counts_of(merged.components, layout) > 0
