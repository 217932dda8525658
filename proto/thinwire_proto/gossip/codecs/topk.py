"""The largest DCT coefficients of each tile: their places, their signs, and one magnitude a tile.

The body is a contribution with magnitudes (`thinwire_proto.wire.codec`), and the step is an update with magnitudes that
has one contribution (`thinwire_proto.exact.apply`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire_proto.contract import DemoSpec
from thinwire_proto.exact.apply import decode_changes
from thinwire_proto.exact.decode import VOTE_MAX
from thinwire_proto.exact.magnitudes import tiles_with
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, Batch, TileLayout
from thinwire_proto.exact.votes import Merged, Votes
from thinwire_proto.gossip.codec import Bytes, Codec, register_codec
from thinwire_proto.gossip.coefficients import Step, map_coefficients, tiles_of
from thinwire_proto.gossip.scales import MATRIX_FACTOR, VALUES, VECTOR_FACTOR, nearest_codes
from thinwire_proto.largest import largest
from thinwire_proto.wire.codec import contribution_bytes_max, decode_votes, encode_votes

DEMO = DemoSpec(magnitude="tile")


Chosen = tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_], npt.NDArray[np.uint8]]
"""Components, signs and codes of a batch: see `Votes`."""


@register_codec("topk", default=64, largest=MATRIX_COMPONENTS)
class TopkCodec(Codec):
    """At most `setting` coefficients a tile."""

    def __init__(self, layout: TileLayout, setting: int) -> None:
        super().__init__(layout, setting)
        self.bytes_max = 1 + contribution_bytes_max(layout, setting, "tile")

    def _encode(self, difference: Tensor) -> Sequence[Bytes]:
        def choose(batch: Batch, values: Tensor) -> Chosen:
            index = largest(values.abs().flatten(1), self.setting, torch.empty_like(values, dtype=torch.bool))
            tile, chosen = index // values[0].numel(), values.view(-1)[index]
            count = torch.bincount(tile, minlength=len(values))
            sums = torch.zeros(len(values), device=values.device).index_add_(0, tile, chosen.abs())
            codes = nearest_codes(sums / count.clamp(min=1))
            sent = torch.from_numpy(codes > 0).to(tile.device)[tile]  # the others are too small for any code
            first = self.layout.first_component(tiles_of(batch, self.layout).start)
            return (index[sent] + first).cpu().numpy(), (chosen[sent] > 0).cpu().numpy(), codes[codes > 0]

        components, positive, codes = zip(*map_coefficients(choose, difference, self.layout), strict=True)
        votes = Votes(np.concatenate(components), np.concatenate(positive), np.concatenate(codes))
        return [encode_votes(votes, self.layout)]

    def _decode(self, body: memoryview, device: torch.device) -> Tensor:
        votes = decode_votes(bytes(body), self.layout, self.setting, "tile")
        assert votes.codes is not None, "codes are asked for"
        tiles = tiles_with(votes.components, self.layout)[0]
        factors = np.where(tiles < self.layout.matrix_tiles, MATRIX_FACTOR, VECTOR_FACTOR).astype(np.float32)
        values = np.where(votes.positive, VOTE_MAX, -VOTE_MAX).astype(np.int16)
        merged = Merged(votes.components, values, VALUES[votes.codes] * factors)
        step = Step(self.layout, device)
        decode_changes(step.put, merged, self.layout, DEMO, learning_rate=0.0, step=0, device=device)
        return step.flat
