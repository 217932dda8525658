"""Every number of the difference as a multiple, −127 to 127, of its block's scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.blocks import VALUES, Blocks, covering_codes
from thinwire_proto.gossip.codec import Bytes, Codec, check_length, register_codec

LEVELS = 127


@register_codec("int8")
class Int8Codec(Codec):
    """A byte a parameter, and one a block. A product of seven and eight bits is exact in float32."""

    def __init__(self, layout: TileLayout) -> None:
        super().__init__(layout)
        self._blocks = Blocks(layout)
        self.bytes_max = 1 + self._blocks.count + layout.parameters

    def _encode(self, difference: Tensor) -> Sequence[Bytes]:
        largest = self._blocks.largest_magnitudes(difference)
        codes = covering_codes(largest / LEVELS)
        units = torch.from_numpy(VALUES[codes]).to(difference.device)
        levels = self._blocks.scale_(difference.clone(), torch.where(units > 0, 1 / units, 0.0))
        levels.round_().clamp_(-LEVELS, LEVELS)
        return [codes.tobytes(), levels.to(torch.int8).cpu().numpy().tobytes()]

    def _decode(self, body: memoryview, device: torch.device) -> Tensor:
        check_length(body, self.bytes_max - 1)
        codes = np.frombuffer(body, np.uint8, self._blocks.count)
        levels = np.frombuffer(body, np.int8, offset=self._blocks.count)
        if levels.min(initial=0) < -LEVELS:
            raise PayloadError(f"a number of the difference must lie between -{LEVELS} and {LEVELS}")
        step = torch.from_numpy(levels.copy()).to(device).to(torch.float32)
        return self._blocks.scale_(step, torch.from_numpy(VALUES[codes]).to(device))
