"""The order of samples: one permutation of all samples for each pass, the same on every machine.

`feistel` needs no memory. The numbers of n samples fit in b bits, 2^(b−1) < n ≤ 2^b. A Feistel network (Luby and
Rackoff, 1988) permutes all numbers of b bits: each round XORs one half with a keyed hash of the other half. Numbers
from n on are no samples, so the network is applied again until the result is below n ("cycle walking", Black and
Rogaway, 2002). This takes at most two applications on average, since n is more than half of 2^b.

`argsort` sorts the samples by a keyed hash, in 8 bytes of memory a sample. It is the order of contracts of version 1.
Only integers are used, so that all machines agree.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from thinwire_proto.contract import Order
from thinwire_proto.exact.mix64 import GOLDEN, mix64, mix64_array

ROUNDS = 8
"""Four for each half; four in all would do against whoever cannot choose what is permuted."""
SAMPLES_MAX = 1 << 63
"""A half then has 32 bits, and what is hashed 64."""


def sample_at(position: int, seed: int, samples: int, order: Order) -> int:
    """The sample at a position of the endless stream of passes; each pass has every sample once."""
    if not 0 < samples <= SAMPLES_MAX:
        raise ValueError(f"there must be 1 to 2^63 samples; there are {samples}")
    pass_number, place = divmod(position, samples)
    return ORDERS[order](place, seed, pass_number, samples)


def _feistel(place: int, seed: int, pass_number: int, samples: int) -> int:
    """place: 0 … samples − 1. Which sample has that place in a pass."""
    keys, bits = _round_keys(seed, pass_number), (samples - 1).bit_length()
    low_bits = bits // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    while True:
        high, low = place >> low_bits, place & low_mask
        for number in range(0, ROUNDS, 2):
            high ^= mix64(keys[number] + low) & high_mask
            low ^= mix64(keys[number + 1] + high) & low_mask
        place = high << low_bits | low
        if place < samples:
            return place


@lru_cache(maxsize=4)
def _round_keys(seed: int, pass_number: int) -> tuple[int, ...]:
    key = _key_of_pass(seed, pass_number)
    return tuple(mix64(key + number * GOLDEN) for number in range(1, ROUNDS + 1))


def _argsort(place: int, seed: int, pass_number: int, samples: int) -> int:
    return int(_sorted(seed, pass_number, samples)[place])


@lru_cache(maxsize=2)
def _sorted(seed: int, pass_number: int, samples: int) -> npt.NDArray[np.int64]:
    """The order of one pass: samples sorted by mix64(key + i)."""
    x = np.arange(samples, dtype=np.uint64) + np.uint64(_key_of_pass(seed, pass_number))  # wraps, as mix64 does
    return np.argsort(mix64_array(x), kind="stable")


def _key_of_pass(seed: int, pass_number: int) -> int:
    return mix64(mix64(seed) + (pass_number + 1) * GOLDEN)


ORDERS: dict[Order, Callable[[int, int, int, int], int]] = {"feistel": _feistel, "argsort": _argsort}
