"""SplitMix64's finalizer (Steele, Lea, Flood 2014): a bijection of 64-bit numbers with random-looking output.

Fingerprints, drawn components and the order of samples use it, so all machines must compute the same bits.
`fingerprint` has a version for tensors on a device.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
"""SplitMix64's increment: 2⁶⁴ divided by the golden ratio, made odd."""
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)

Numbers = npt.NDArray[np.uint64]


def mix64(x: int) -> int:
    """Mix one number, modulo 2⁶⁴."""
    x &= MASK
    x = ((x ^ (x >> SHIFTS[0])) * MULTIPLIERS[0]) & MASK
    x = ((x ^ (x >> SHIFTS[1])) * MULTIPLIERS[1]) & MASK
    return x ^ (x >> SHIFTS[2])


def mix64_array(x: Numbers) -> Numbers:
    """Mix an array of numbers into a new array."""
    mixed: Numbers = x.copy()
    mix64_in_place(mixed, np.empty_like(mixed))
    return mixed


def mix64_in_place(x: Numbers, scratch: Numbers) -> None:
    """Mix an array of numbers in place. scratch: a buffer of the same length."""
    for shift, multiplier in zip(SHIFTS, (*MULTIPLIERS, None), strict=True):
        np.right_shift(x, np.uint64(shift), out=scratch)
        np.bitwise_xor(x, scratch, out=x)
        if multiplier is not None:
            np.multiply(x, np.uint64(multiplier), out=x)
