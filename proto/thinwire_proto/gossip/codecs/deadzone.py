"""Each number of the difference in five levels, whose digits take about one bit a parameter.

The problem: magnitudes within a block differ where a message left some of them, and where Muon makes the steps. The
sign spends its bit on numbers near 0 too, and moves each of them by the mean magnitude. The sketch: numbers near 0 are
0, which is the dead zone; others have one of two sizes, and their sign. Digits are coded by their frequency, and the
dead zone is as wide as makes that BITS a parameter (uniform quantization with entropy coding: Sullivan, Efficient
scalar quantization of exponential and Laplacian random variables, 1996).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.blocks import BLOCK, Blocks
from thinwire_proto.gossip.codec import STEP_MAX, Bytes, Codec, register_codec
from thinwire_proto.gossip.scales import VALUES, nearest_codes
from thinwire_proto.wire.levels_form import pack_levels, unpack_levels

LEVELS = 2
"""Sizes beside 0. A third gains less than a hundredth of what the sign leaves (docs/log/decentralized.md)."""
BITS, BITS_MAX = 1.0, 1.055
"""Entropy of the digits of a parameter, and the most that their codes may take."""
BITS_STEP = 0.04
"""Less entropy, until the codes are short enough."""
TOLERANCE = 0.005
"""One number near 0 among many equal ones is no reason for a wide dead zone."""
TABLES_MAX = 600
"""Bytes of a frame, and of its Huffman codes."""
ROUNDING = 0.4
"""Level of a number: ⌈|x|/step + ROUNDING⌉ − 1. Below 0.5, because small numbers are more frequent."""
SIZE_MAX = 2.0 * BLOCK
"""Of a level, in scales of its block, which are the mean magnitude."""
STEPS = np.geomspace(0.02, 2 * SIZE_MAX, 1024)
"""In scales of a block."""
BINS = 1 << 14
"""Of the root of a magnitude, so that they are fine where magnitudes are small."""
SAMPLED_MAX = 1 << 20
"""Of many numbers, about so many tell how frequent levels are."""

assert float(VALUES[-1]) * SIZE_MAX < STEP_MAX


@register_codec("deadzone")
class DeadzoneCodec(Codec):
    """About one bit a parameter, and a byte a block."""

    def __init__(self, layout: TileLayout, setting: int) -> None:
        super().__init__(layout, setting)
        self._blocks = Blocks(layout)
        self._digits_max = int(layout.parameters * BITS_MAX / 8) + TABLES_MAX
        self.bytes_max = 1 + self._blocks.count + 4 * LEVELS + self._digits_max

    def _encode(self, difference: Tensor) -> Sequence[Bytes]:
        codes = nearest_codes(self._blocks.mean_magnitudes(difference))
        scales = torch.from_numpy(VALUES[codes]).to(difference.device)
        relative = self._blocks.scale_(difference.clone(), torch.where(scales > 0, 1 / scales, 0.0))
        magnitudes, is_negative, bits = relative.abs(), relative < 0, BITS
        while True:
            borders, sizes = _levels(magnitudes, bits)
            digits = torch.zeros(len(magnitudes), dtype=torch.int8, device=difference.device)
            for border in borders:
                digits += magnitudes > border
            packed = pack_levels(torch.where(is_negative, -digits, digits).cpu().numpy(), LEVELS)
            if len(packed) <= self._digits_max:
                return [codes.tobytes(), sizes.tobytes(), packed]
            bits = max(bits - BITS_STEP, 0.0)

    def _decode(self, body: memoryview, device: torch.device) -> Tensor:
        count = self._blocks.count
        if len(body) < count + 4 * LEVELS:
            raise PayloadError(f"the scales take {count + 4 * LEVELS} bytes; there are {len(body)}")
        sizes = np.frombuffer(body, "<f4", LEVELS, offset=count)
        if not ((sizes >= 0) & (sizes <= SIZE_MAX)).all():
            raise PayloadError(f"sizes of levels are from 0 to {SIZE_MAX:g}; these are {sizes.tolist()}")
        digits = unpack_levels(bytes(body[count + 4 * LEVELS :]), self.layout.parameters, LEVELS)
        of_digit = np.concatenate([-sizes[::-1], [0.0], sizes]).astype(np.float32)
        values = torch.from_numpy(of_digit[digits.astype(np.int64) + LEVELS]).to(device)
        codes = np.frombuffer(body, np.uint8, count)
        return self._blocks.scale_(values, torch.from_numpy(VALUES[codes]).to(device))


def _levels(magnitudes: Tensor, bits: float) -> tuple[list[float], npt.NDArray[np.float32]]:
    """The least magnitude of each level but 0, and the levels' sizes, which are the mean magnitudes there; in scales of
    a block.

    Of the steps with which the digits' entropy is at most so many bits, that which leaves the least. Where magnitudes
    are nearly equal, it is so small that no digit is 0."""
    some = magnitudes[:: len(magnitudes) // SAMPLED_MAX | 1].clamp(max=SIZE_MAX)
    counts = torch.histc(some.sqrt(), BINS, 0.0, SIZE_MAX**0.5).double().cpu().numpy()
    edges = np.linspace(0.0, SIZE_MAX**0.5, BINS + 1) ** 2
    number, total = (
        np.concatenate([[0.0], np.cumsum(counts * weights)]) for weights in (1.0, (edges[1:] + edges[:-1]) / 2)
    )
    inner = [(level + 1 - ROUNDING) * STEPS for level in range(LEVELS)]
    borders = np.stack([np.zeros_like(STEPS), *inner, np.full_like(STEPS, SIZE_MAX)])
    numbers, totals = (np.diff(np.interp(borders, edges, below), axis=0) for below in (number, total))
    shares = numbers / max(1.0, number[-1])
    entropy = -(shares * np.log2(np.maximum(shares, 1e-30))).sum(0) + 1 - shares[0]
    sizes = np.where(numbers[1:] < 0.5, 0.0, totals[1:] / np.maximum(numbers[1:], 0.5)).clip(0.0, SIZE_MAX)
    taken = (totals[1:] * sizes).sum(0)  # of the squares of all magnitudes
    best = np.argmax(np.where(entropy <= bits + TOLERANCE, taken, -1.0))
    return [float(step) for step in borders[1:-1, best]], sizes[:, best].astype("<f4")
