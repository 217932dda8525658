"""The fingerprint of a replica's bits: Σ mix64(bits, position, tensor, nonce) mod 2⁶⁴.

The sum uses integer arithmetic on the device that holds the parameters. Its order does not matter, so threads, batches
and devices do not change the result. The coordinator announces the nonce with the round, so a node cannot answer with
an older fingerprint. Fingerprints detect machines that make errors. They are not cryptographic hashes and do not detect
machines that lie.

The key of tensor t is mix64(nonce + (t + 1)·GOLDEN). Parameter p with float32 bits u adds mix64((p·2³² + u) ⊕ key),
where mix64 is the finalizer of SplitMix64 (Steele, Lea, Flood 2014).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from thinwire_proto.batch_pool import process_batches
from thinwire_proto.contract import TENSOR_ELEMENTS_MAX
from thinwire_proto.exact.mix64 import GOLDEN, MASK, MULTIPLIERS, SHIFTS, mix64, mix64_in_place

CHUNK = 1 << 15
"""Parameters processed at a time. It bounds the extra memory and does not affect the result."""
CACHED_CHUNK = 1 << 16
"""The same for a CPU: small enough for its cache, and so large that threads hardly ever wait for the interpreter's lock
between two operations. `_Cached` requires a power of two."""
BATCH = 1 << 20
"""Parameters that a thread takes at a time, on a CPU; a multiple of `CACHED_CHUNK`."""
Piece = tuple[int, int, Tensor]
"""The number of a tensor in the manifest's order, the position of a piece's first element in it, and the piece."""
Batch = tuple[npt.NDArray[np.int32], int, int]
"""Bits of some elements of a tensor, the key of the tensor, and the position of the first of them."""


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


def _xor_shift_(x: Tensor, shift: int) -> Tensor:
    """x ^= x >>> shift. torch shifts int64 arithmetically, so this masks off the copied sign bits."""
    shifted = x >> shift
    shifted &= (1 << (64 - shift)) - 1
    return x.bitwise_xor_(shifted)


def _mix64_(x: Tensor) -> Tensor:
    _xor_shift_(x, SHIFTS[0]).mul_(_signed(MULTIPLIERS[0]))
    _xor_shift_(x, SHIFTS[1]).mul_(_signed(MULTIPLIERS[1]))
    return _xor_shift_(x, SHIFTS[2])


def fingerprint(tensors: Iterable[Tensor], nonce: int) -> int:
    """The fingerprint, 0 … 2⁶⁴ − 1, of float32 tensors in the manifest's order under `nonce` (0 … 2⁶⁴ − 1)."""
    return fingerprint_of_pieces(((number, 0, tensor) for number, tensor in enumerate(tensors)), nonce)


def fingerprint_of_pieces(pieces: Iterable[Piece], nonce: int) -> int:
    """The part of a fingerprint that pieces of the tensors have: those of all pieces add up, modulo 2⁶⁴."""
    total = 0
    batches: list[Batch] = []
    for number, first, tensor in pieces:
        if tensor.dtype != torch.float32 or tensor.numel() >= TENSOR_ELEMENTS_MAX:
            raise ValueError("a fingerprint needs float32 tensors with fewer than 2³¹ elements")
        key = mix64(nonce + (number + 1) * GOLDEN)
        bits = tensor.detach().contiguous().view(-1).view(torch.int32)
        if bits.device.type == "cpu":
            values = bits.numpy()
            batches += [(values[start : start + BATCH], key, first + start) for start in range(0, len(values), BATCH)]
        else:
            total += _sum(bits, key, first)
    by_slot: dict[int, _Cached] = {}

    def add_up(batch: Batch, slot: int) -> int:
        if slot not in by_slot:
            by_slot[slot] = _Cached(max(len(bits) for bits, _, _ in batches))
        return by_slot[slot].sum(*batch)

    return (total + sum(process_batches(add_up, batches))) & MASK


def _sum(bits: Tensor, key: int, first: int = 0) -> int:
    """Σ mix64((p·2³² + u) ⊕ key) over int32 bits [n] at the positions p = first, first + 1, …; on any device."""
    sums = torch.zeros((), dtype=torch.int64, device=bits.device)  # stays on the device until the run is done
    for start in range(0, bits.numel(), CHUNK):
        x = bits[start : start + CHUNK].to(torch.int64)
        x &= 0xFFFFFFFF
        position = torch.arange(first + start, first + start + x.numel(), device=bits.device, dtype=torch.int64)
        x |= position << 32
        x ^= _signed(key)
        sums += _mix64_(x).sum()
    return int(sums)


class _Cached:
    """Computes the same sum on a CPU in half the time: numpy shifts unsigned numbers directly and reuses buffers.

    The number p·2³² + u is stored as the pair (u, p). If p counts from the start of an aligned chunk, the upper halves
    never change. The chunk's start shares no bits with them, so it is XORed into the key instead.
    """

    def __init__(self, longest: int | None = None) -> None:
        """longest: run that will be summed, if that is known; the chunk need not be longer."""
        self._chunk = CACHED_CHUNK if longest is None else min(CACHED_CHUNK, 1 << longest.bit_length())
        pairs = np.zeros((self._chunk, 2), "<u4")
        pairs[:, 1] = np.arange(self._chunk)
        self._low = pairs[:, 0]
        self._whole = pairs.view("<u8")[:, 0]
        self._x = np.empty(self._chunk, np.uint64)
        self._scratch = np.empty(self._chunk, np.uint64)

    def sum(self, bits: npt.NDArray[np.int32], key: int, first: int = 0) -> int:
        """`_sum` of bits at the positions from `first` on."""
        total = start = 0
        while start < len(bits):
            within = (first + start) % self._chunk
            part = bits[start : start + self._chunk - within].view(np.uint32)
            count = len(part)
            self._low[within : within + count] = part
            x = self._x[:count]
            whole = self._whole[within : within + count]
            np.bitwise_xor(whole, np.uint64(key ^ ((first + start - within) << 32)), out=x)
            mix64_in_place(x, self._scratch[:count])
            total += int(x.sum())
            start += count
        return total
