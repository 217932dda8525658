"""Signs as bits, least significant bit first, and back, on any device."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.codec import Bytes

BITS = 8


def pack_signs(values: Tensor) -> bytes:
    """One bit for each number of a flat tensor: whether it is above 0. The last byte is filled with zeros."""
    positive = values > 0
    if positive.device.type == "cpu":
        return np.packbits(positive.numpy(), bitorder="little").tobytes()
    padded = torch.nn.functional.pad(positive.to(torch.uint8), (0, -len(positive) % BITS))
    weights = 2 ** torch.arange(BITS, dtype=torch.uint8, device=values.device)
    return (padded.view(-1, BITS) * weights).sum(1, dtype=torch.uint8).cpu().numpy().tobytes()


def unpack_signs(packed: Bytes, count: int, device: torch.device, size: float = 1.0) -> Tensor:
    """The signs as ±size, float32 [count]. packed: exactly their bytes. Raises PayloadError if bits follow the last."""
    raw = np.frombuffer(packed, np.uint8)
    if count % BITS and raw[-1] >> (count % BITS):
        raise PayloadError("there are bits after the last sign")
    index = torch.from_numpy(raw.astype(np.int32)).to(device)
    return _signs_of_bytes(size, device).index_select(0, index).view(-1)[:count]


@lru_cache(maxsize=16)
def _signs_of_bytes(size: float, device: torch.device) -> Tensor:
    """The eight signs of each byte, float32 [256, 8]."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return torch.from_numpy((2.0 * bits - 1.0) * size).to(torch.float32).to(device)
