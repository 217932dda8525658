"""The order of samples: one permutation of all samples for each pass, the same on every machine.

It needs no memory. The indices of n samples fit in b bits, where 2^(b−1) < n ≤ 2^b. A Feistel network (Luby and
Rackoff, 1988) permutes all b-bit numbers: each round XORs one half with a keyed hash of the other half. Results of n or
more are not samples, so the network is applied again until the result is below n ("cycle walking", Black and Rogaway,
2002). This takes fewer than two applications on average, because n is more than half of 2^b.

Only integer arithmetic is used, so that all machines agree.
"""

from __future__ import annotations

from functools import lru_cache

from thinwire_proto.exact.mix64 import GOLDEN, mix64

ROUNDS = 8
"""Rounds of the network, four for each half. Four in total would suffice if nobody chooses the inputs."""
SAMPLES_MAX = 1 << 63
"""Keeps each half within 32 bits, so that the hash input fits 64 bits."""


def sample_at(position: int, seed: int, samples: int) -> int:
    """The sample at a position in the endless stream of passes. Each pass has every sample once."""
    if not 0 < samples <= SAMPLES_MAX:
        raise ValueError(f"there must be 1 to 2^63 samples; there are {samples}")
    pass_number, index = divmod(position, samples)
    keys, bits = _round_keys(seed, pass_number), (samples - 1).bit_length()
    low_bits = bits // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    while True:
        high, low = index >> low_bits, index & low_mask
        for number in range(0, ROUNDS, 2):
            high ^= mix64(keys[number] + low) & high_mask
            low ^= mix64(keys[number + 1] + high) & low_mask
        index = high << low_bits | low
        if index < samples:
            return index


@lru_cache(maxsize=4)
def _round_keys(seed: int, pass_number: int) -> tuple[int, ...]:
    key = mix64(mix64(seed) + (pass_number + 1) * GOLDEN)
    return tuple(mix64(key + number * GOLDEN) for number in range(1, ROUNDS + 1))
