"""The sign of every number of the difference, times the mean magnitude of its block.

Where the steps of Adam make up the difference, magnitudes within a block differ little, and the sign says nearly all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.blocks import VALUES, Blocks, nearest_codes
from thinwire_proto.gossip.codec import Bytes, Codec, check_length, register_codec

BITS = 8


@register_codec("sign")
class SignCodec(Codec):
    """A bit a parameter, and a byte a block."""

    def __init__(self, layout: TileLayout) -> None:
        super().__init__(layout)
        self._blocks = Blocks(layout)
        self.bytes_max = 1 + self._blocks.count + -(-layout.parameters // 8)

    def _encode(self, difference: Tensor) -> Sequence[Bytes]:
        means = self._blocks.mean_magnitudes(difference)
        return [nearest_codes(means).tobytes(), _packed(difference)]

    def _decode(self, body: memoryview, device: torch.device) -> Tensor:
        check_length(body, self.bytes_max - 1)
        signs = _unpacked(body[self._blocks.count :], self.layout.parameters, device)
        codes = np.frombuffer(body, np.uint8, self._blocks.count)
        return self._blocks.scale_(signs, torch.from_numpy(VALUES[codes]).to(device))


def _packed(values: Tensor) -> bytes:
    """One bit for each number of a flat tensor: whether it is above 0. The last byte is filled with zeros."""
    positive = values > 0
    if positive.device.type == "cpu":
        return np.packbits(positive.numpy(), bitorder="little").tobytes()
    padded = torch.nn.functional.pad(positive.to(torch.uint8), (0, -len(positive) % BITS))
    weights = 2 ** torch.arange(BITS, dtype=torch.uint8, device=values.device)
    return (padded.view(-1, BITS) * weights).sum(1, dtype=torch.uint8).cpu().numpy().tobytes()


def _unpacked(packed: Bytes, count: int, device: torch.device) -> Tensor:
    """The signs as ±1, float32 [count]. packed: exactly their bytes. Raises PayloadError if bits follow the last."""
    raw = np.frombuffer(packed, np.uint8)
    if count % BITS and raw[-1] >> (count % BITS):
        raise PayloadError("there are bits after the last sign")
    index = torch.from_numpy(raw.astype(np.int32)).to(device)
    return _signs_of_bytes(device).index_select(0, index).view(-1)[:count]


@lru_cache(maxsize=4)
def _signs_of_bytes(device: torch.device) -> Tensor:
    """The eight signs of each byte, float32 [256, 8]."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return torch.from_numpy(2.0 * bits - 1.0).to(torch.float32).to(device)
