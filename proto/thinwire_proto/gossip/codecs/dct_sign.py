"""The sign of every DCT coefficient of the difference, times the mean magnitude of its tile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from thinwire_proto.exact.decode import VOTE_MAX, displacements, tile_batch
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.bits import pack_signs, unpack_signs
from thinwire_proto.gossip.codec import Bytes, Codec, check_length, register_codec
from thinwire_proto.gossip.coefficients import TRANSFORM, Step, coefficients, shape_of, tiles_of
from thinwire_proto.gossip.scales import MATRIX_FACTOR, VALUES, VECTOR_FACTOR, nearest_codes


@register_codec("dct-sign")
class DctSignCodec(Codec):
    """A bit a coefficient, padding included, and a byte a tile."""

    def __init__(self, layout: TileLayout, setting: int) -> None:
        super().__init__(layout, setting)
        self.bytes_max = 1 + layout.tiles + layout.components // 8

    def _encode(self, difference: Tensor) -> Sequence[Bytes]:
        codes, signs = [], []
        for _, found in coefficients(difference, self.layout):
            means = found.abs().flatten(1).mean(1)
            codes.append(nearest_codes(means).tobytes())
            signs.append(pack_signs(found.view(-1)))
        return codes + signs

    def _decode(self, body: memoryview, device: torch.device) -> Tensor:
        check_length(body, self.bytes_max - 1)
        codes = np.frombuffer(body, np.uint8, self.layout.tiles)
        step, start = Step(self.layout, device), self.layout.tiles
        for batch in self.layout.batches(tile_batch(device)):
            shape = shape_of(batch)
            end = start + shape.numel() // 8
            signs = unpack_signs(body[start:end], shape.numel(), device, VOTE_MAX).view(shape)
            start = end
            scales = VALUES[codes[tiles_of(batch, self.layout)]] * np.float32(
                MATRIX_FACTOR if batch.is_matrix else VECTOR_FACTOR
            )
            scale = torch.from_numpy(scales).to(device).view(-1, *[1] * (len(shape) - 1))
            step.put(batch, displacements(signs, TRANSFORM, scale))
        return step.flat
