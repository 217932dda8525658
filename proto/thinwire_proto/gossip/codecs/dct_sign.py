"""The sign of every DCT coefficient of the difference, times the mean magnitude of its tile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from thinwire_proto.batch_pool import process_batches
from thinwire_proto.exact.decode import VOTE_MAX, displacements, tile_batch
from thinwire_proto.exact.tiles import Batch, TileLayout
from thinwire_proto.gossip.bits import pack_signs, unpack_signs
from thinwire_proto.gossip.codec import Bytes, Codec, check_length, register_codec
from thinwire_proto.gossip.coefficients import Step, map_coefficients, shape_of, tiles_of
from thinwire_proto.gossip.scales import MATRIX_FACTOR, VALUES, VECTOR_FACTOR, nearest_codes


@register_codec("dct-sign")
class DctSignCodec(Codec):
    """A bit a coefficient, padding included, and a byte a tile."""

    def __init__(self, layout: TileLayout, setting: int) -> None:
        super().__init__(layout, setting)
        self.bytes_max = 1 + layout.tiles + layout.components // 8

    def _encode(self, difference: Tensor) -> Sequence[Bytes]:
        def encode(batch: Batch, found: Tensor) -> tuple[Bytes, Bytes]:
            means = found.abs().flatten(1).mean(1)
            return nearest_codes(means).tobytes(), pack_signs(found.view(-1))

        parts = map_coefficients(encode, difference, self.layout)
        return [codes for codes, _ in parts] + [signs for _, signs in parts]

    def _decode(self, body: memoryview, device: torch.device) -> Tensor:
        check_length(body, self.bytes_max - 1)
        codes = np.frombuffer(body, np.uint8, self.layout.tiles)
        step = Step(self.layout, device)

        def decode(batch: Batch, slot: int) -> None:
            shape, tiles = shape_of(batch), tiles_of(batch, self.layout)
            start = self.layout.tiles + self.layout.first_component(tiles.start) // 8
            bits = body[start : start + shape.numel() // 8]
            signs = unpack_signs(bits, shape.numel(), device, VOTE_MAX).view(shape)
            scales = VALUES[codes[tiles]] * np.float32(MATRIX_FACTOR if batch.is_matrix else VECTOR_FACTOR)
            scale = torch.from_numpy(scales).to(device).view(-1, *[1] * (len(shape) - 1))
            step.put(batch, displacements(signs, scale))

        process_batches(decode, self.layout.batches(tile_batch(device)), device)
        return step.flat
