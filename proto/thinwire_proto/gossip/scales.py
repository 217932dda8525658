"""The scale of a block or of a tile, as one byte.

A code stands for a value of the table of `thinwire_proto.exact.magnitudes`, which has eight significant bits. Code 0
stands for 0: nothing changes there. No machine's logarithm or division enters a decoded scale.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire_proto.exact.decode import VOTE_MAX
from thinwire_proto.exact.magnitudes import OCTAVE, TABLE, UNIT
from thinwire_proto.gossip.codec import STEP_MAX

Codes = npt.NDArray[np.uint8]

MATRIX_FACTOR = 33_528 * 2.0**-32
VECTOR_FACTOR = 47_059 * 2.0**-32
"""1/(127·gain) of `magnitudes.gain` for the DCT, to 16 bits. Times a value of eight bits, float32 holds it exactly.
tests/gossip/proto/test_codecs.py recomputes them."""
SMALLEST = OCTAVE[0] * UNIT
PER_OCTAVE = len(OCTAVE)


def values_table() -> npt.NDArray[np.float32]:
    """The value of each code, float32 [256]."""
    values = TABLE * UNIT
    values[0] = 0.0
    return values.astype(np.float32)


VALUES = values_table()

assert float(VALUES[-1]) * VOTE_MAX < STEP_MAX


def nearest_codes(magnitudes: Tensor) -> Codes:
    """The code of the nearest value to each magnitude of 0 or more. Too large ones get the largest code."""
    return _codes(torch.round(_positions(magnitudes)))


def covering_codes(magnitudes: Tensor) -> Codes:
    """The code of the smallest value that is at least as large, or hardly smaller, as each magnitude."""
    return _codes(torch.ceil(_positions(magnitudes) - 0.01))


def _positions(magnitudes: Tensor) -> Tensor:
    return PER_OCTAVE * torch.log2(magnitudes.double().clamp(min=1e-30) / SMALLEST)


def _codes(positions: Tensor) -> Codes:
    codes: Codes = positions.clamp(0, len(TABLE) - 1).to(torch.uint8).cpu().numpy()
    return codes
