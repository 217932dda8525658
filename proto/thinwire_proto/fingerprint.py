"""A number that stands for a replica's bits: Σ mix64(bits, position, tensor, nonce) mod 2⁶⁴ (design section 3.7).

Order-free integer arithmetic where the parameters are, so threads, batches and devices have no say in it. The nonce of
a round is announced with the round: nobody can answer with a number that they kept. It finds machines that err, not
machines that lie: it is no cryptographic hash.

Per tensor t the key is mix64(nonce + (t + 1)·GOLDEN), and parameter p with float32 bits u adds
mix64((p·2³² + u) ⊕ key), where mix64 is the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from thinwire_proto.contract import TENSOR_ELEMENTS_MAX

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)
CHUNK = 1 << 15
"""Parameters worked on at a time, so that they stay in the cache: bounds the extra memory, not the result."""


def mix64(x: int) -> int:
    """SplitMix64's finalizer, on one number."""
    x &= MASK
    x = ((x ^ (x >> SHIFTS[0])) * MULTIPLIERS[0]) & MASK
    x = ((x ^ (x >> SHIFTS[1])) * MULTIPLIERS[1]) & MASK
    return x ^ (x >> SHIFTS[2])


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
    for number, tensor in enumerate(tensors):
        if tensor.dtype != torch.float32 or tensor.numel() >= TENSOR_ELEMENTS_MAX:
            raise ValueError("a fingerprint is taken of float32 tensors with fewer than 2³¹ elements")
        key = _signed(mix64(nonce + (number + 1) * GOLDEN))
        bits = tensor.detach().contiguous().view(-1).view(torch.int32)
        sums = torch.zeros((), dtype=torch.int64, device=bits.device)  # stays on the device until the tensor is done
        for start in range(0, bits.numel(), CHUNK):
            x = bits[start : start + CHUNK].to(torch.int64)
            x &= 0xFFFFFFFF
            position = torch.arange(start, start + x.numel(), device=bits.device, dtype=torch.int64)
            x |= position << 32
            x ^= key
            sums += _mix64_(x).sum()
        total += int(sums)
    return total & MASK
