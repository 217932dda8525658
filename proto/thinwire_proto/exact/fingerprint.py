"""A number that stands for a replica's bits: Σ mix64(bits, position, tensor, nonce) mod 2⁶⁴ (design section 3.7).

Order-free integer arithmetic where the parameters are, so threads, batches and devices have no say in it. The nonce of
a round is announced with the round: nobody can answer with a number that they kept. It finds machines that err, not
machines that lie: it is no cryptographic hash.

Per tensor t the key is mix64(nonce + (t + 1)·GOLDEN), and parameter p with float32 bits u adds
mix64((p·2³² + u) ⊕ key), where mix64 is the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire_proto.contract import TENSOR_ELEMENTS_MAX
from thinwire_proto.exact.mix64 import GOLDEN, MASK, MULTIPLIERS, SHIFTS, mix64, mix64_in_place

CHUNK = 1 << 15
"""Parameters worked on at a time: bounds the extra memory, not the result."""
CACHED_CHUNK = 1 << 14
"""The same on a CPU, where they stay in the cache. A power of two: see `_Cached`."""


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


def _xor_shift_(x: Tensor, shift: int) -> Tensor:
    """x ^= x >>> shift: torch shifts int64 arithmetically, so the copied sign bits are masked off."""
    shifted = x >> shift
    shifted &= (1 << (64 - shift)) - 1
    return x.bitwise_xor_(shifted)


def _mix64_(x: Tensor) -> Tensor:
    _xor_shift_(x, SHIFTS[0]).mul_(_signed(MULTIPLIERS[0]))
    _xor_shift_(x, SHIFTS[1]).mul_(_signed(MULTIPLIERS[1]))
    return _xor_shift_(x, SHIFTS[2])


def fingerprint(tensors: Iterable[Tensor], nonce: int) -> int:
    """The fingerprint, 0 … 2⁶⁴ − 1, of float32 tensors in the manifest's order under `nonce` (0 … 2⁶⁴ − 1)."""
    total = 0
    cached = _Cached()
    for number, tensor in enumerate(tensors):
        if tensor.dtype != torch.float32 or tensor.numel() >= TENSOR_ELEMENTS_MAX:
            raise ValueError("a fingerprint is taken of float32 tensors with fewer than 2³¹ elements")
        key = mix64(nonce + (number + 1) * GOLDEN)
        bits = tensor.detach().contiguous().view(-1).view(torch.int32)
        total += cached.sum(bits.numpy(), key) if bits.device.type == "cpu" else _sum(bits, key)
    return total & MASK


def _sum(bits: Tensor, key: int) -> int:
    """Σ mix64((p·2³² + u) ⊕ key) over one tensor's bits, int32 [n], on any device."""
    sums = torch.zeros((), dtype=torch.int64, device=bits.device)  # stays on the device until the tensor is done
    for start in range(0, bits.numel(), CHUNK):
        x = bits[start : start + CHUNK].to(torch.int64)
        x &= 0xFFFFFFFF
        position = torch.arange(start, start + x.numel(), device=bits.device, dtype=torch.int64)
        x |= position << 32
        x ^= _signed(key)
        sums += _mix64_(x).sum()
    return int(sums)


class _Cached:
    """The same sum on a CPU, in half the time: numpy shifts unsigned numbers as they are, and buffers are used again.

    A number p·2³² + u is laid down as the pair (u, p). With p counted from the beginning of a chunk the upper halves
    never change: the beginning has no bits in common with them, and goes into the key.
    """

    def __init__(self) -> None:
        pairs = np.zeros((CACHED_CHUNK, 2), "<u4")
        pairs[:, 1] = np.arange(CACHED_CHUNK)
        self._low = pairs[:, 0]
        self._whole = pairs.view("<u8")[:, 0]
        self._x = np.empty(CACHED_CHUNK, np.uint64)
        self._scratch = np.empty(CACHED_CHUNK, np.uint64)

    def sum(self, bits: npt.NDArray[np.int32], key: int) -> int:
        total = 0
        for start in range(0, len(bits), CACHED_CHUNK):
            part = bits[start : start + CACHED_CHUNK].view(np.uint32)
            count = len(part)
            self._low[:count] = part
            x = self._x[:count]
            np.bitwise_xor(self._whole[:count], np.uint64(key ^ (start << 32)), out=x)
            mix64_in_place(x, self._scratch[:count])
            total += int(x.sum())
        return total
