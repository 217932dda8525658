"""The sign of every number of the difference, times the mean magnitude of its block.

Where the steps of Adam make up the difference, magnitudes within a block differ little, and the sign says nearly all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.bits import pack_signs, unpack_signs
from thinwire_proto.gossip.blocks import Blocks
from thinwire_proto.gossip.codec import Bytes, Codec, check_length, register_codec
from thinwire_proto.gossip.scales import VALUES, nearest_codes


@register_codec("sign")
class SignCodec(Codec):
    """A bit a parameter, and a byte a block."""

    def __init__(self, layout: TileLayout, setting: int) -> None:
        super().__init__(layout, setting)
        self._blocks = Blocks(layout)
        self.bytes_max = 1 + self._blocks.count + -(-layout.parameters // 8)

    def _encode(self, difference: Tensor) -> Sequence[Bytes]:
        means = self._blocks.mean_magnitudes(difference)
        return [nearest_codes(means).tobytes(), pack_signs(difference)]

    def _decode(self, body: memoryview, device: torch.device) -> Tensor:
        check_length(body, self.bytes_max - 1)
        signs = unpack_signs(body[self._blocks.count :], self.layout.parameters, device)
        codes = np.frombuffer(body, np.uint8, self._blocks.count)
        return self._blocks.scale_(signs, torch.from_numpy(VALUES[codes]).to(device))
