"""A fuzz target for the payload codec: `make fuzz`. Whatever the bytes are, what comes out is votes or an update of
the contract, or the one typed error; and no more memory is taken than the contract bounds.

Inputs are valid payloads, damaged: bits flipped, cut off, made longer, or taken apart and put together again with
fields of other payloads, other numbers, and frames of other contents, so that what lies behind the first check is
reached too.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass

import msgpack
import numpy as np
import zstandard

from thinwire_proto.codec import (
    Update,
    contribution_bytes_max,
    decode_update,
    decode_votes,
    encode_update,
    encode_votes,
    update_bytes_max,
)
from thinwire_proto.contract import Magnitude, Parameter
from thinwire_proto.errors import PayloadError
from thinwire_proto.magnitudes import TABLE, MagnitudeMerger, tiles_with
from thinwire_proto.sign_form import signs_of
from thinwire_proto.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TileLayout
from thinwire_proto.votes import Merged, Signs, Votes, merge

LAYOUT = TileLayout([Parameter(name="m", shape=(100, 150)), Parameter(name="v", shape=(130,))])
K = 24
BYTES_A_COMPONENT = 32
"""Memory that reading may take, for each component that the contract allows: components as int64, their copies on the
way, and what a frame unpacks to."""
BYTES_BESIDE = 1 << 16
SAID_EVERY_S = 10.0


@dataclass(frozen=True)
class Target:
    """One of the codec's readers, valid payloads for it, and how much memory it may take."""

    what: str
    read: Callable[[bytes], object]
    check: Callable[[object], None]
    valid: list[bytes]
    memory_max: int


class Broken(Exception):
    """The codec did what it must not."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m deploy.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="default 1000000")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    arguments = parser.parse_args()
    try:
        print(fuzz(arguments.inputs, arguments.seed))
    except Broken as error:
        again = f"python -m deploy.fuzz --inputs {arguments.inputs} --seed {arguments.seed}"
        raise SystemExit(f"{error}\nagain: {again}") from None


def fuzz(inputs: int, seed: int) -> str:
    """What was found, in a line. Raises Broken at the first input that shows a fault."""
    rng, targets = random.Random(seed), make_targets()
    fields = [field for target in targets for data in target.valid for field in msgpack.unpackb(data)]
    read = refused = 0
    largest, began = dict.fromkeys((target.what for target in targets), 0.0), time.monotonic()
    said = began
    tracemalloc.start()
    try:
        for number in range(inputs):
            target = targets[number % len(targets)]
            data = damaged(rng, target.valid, fields)
            used = try_one(target, data)
            read += used.read
            refused += not used.read
            largest[target.what] = max(largest[target.what], used.memory / target.memory_max)
            if sys.stderr.isatty() and time.monotonic() - said > SAID_EVERY_S:
                said = time.monotonic()
                print(f"{number + 1:,} of {inputs:,}", end="\r", file=sys.stderr, flush=True)
    finally:
        tracemalloc.stop()
    most = ", ".join(f"{what} {share:.0%}" for what, share in largest.items())
    return (
        f"{inputs:,} inputs in {time.monotonic() - began:.0f} s: {read:,} read, {refused:,} refused with the typed "
        f"error, nothing else; of the memory that the contract bounds: {most}"
    )


@dataclass(frozen=True)
class Used:
    read: bool
    memory: int


def try_one(target: Target, data: bytes) -> Used:
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    read = True
    try:
        found = target.read(data)
    except PayloadError:
        read = False
    except Exception as error:
        raise Broken(f"{target.what}: {type(error).__name__}: {error}: from {data.hex()}") from error
    used = tracemalloc.get_traced_memory()[1] - before
    if used > target.memory_max:
        raise Broken(f"{target.what}: {used} bytes of memory, and not {target.memory_max}: from {data.hex()}")
    if read:
        try:
            target.check(found)
        except AssertionError as error:
            raise Broken(f"{target.what}: what was read is not of the contract {error}: {data.hex()}") from error
    return Used(read, used)


def try_one_traced(target: Target, data: bytes) -> Used:
    """The same by itself."""
    tracemalloc.start()
    try:
        return try_one(target, data)
    finally:
        tracemalloc.stop()


def damaged(rng: random.Random, valid: list[bytes], others: list[object]) -> bytes:
    data = rng.choice(valid)
    kind = rng.randrange(8)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind == 1:
        return data[: rng.randrange(len(data))]
    if kind <= 4:
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 5)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    fields = msgpack.unpackb(data)
    for _ in range(rng.randrange(1, 3)):
        place = rng.randrange(1, len(fields))
        fields[place] = other_field(rng, fields[place], others)
    return bytes(msgpack.packb(fields))


def other_field(rng: random.Random, field: object, others: list[object]) -> object:
    if rng.random() < 0.3:
        return rng.choice(others)
    if isinstance(field, int):
        return rng.choice([0, 1, 2, 255, 2**31, 2**63, rng.randrange(2**20), max(0, field + rng.randrange(-2, 3))])
    assert isinstance(field, bytes)
    try:
        content = bytearray(zstandard.ZstdDecompressor().decompress(field, max_output_size=1 << 20))
    except zstandard.ZstdError:
        content = bytearray(field)
        if content:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        return bytes(content)
    for _ in range(rng.randrange(1, 4)):
        if content:
            content[rng.randrange(len(content))] = rng.choice([0, 1, 63, 64, 254, 255, rng.randrange(256)])
    if rng.random() < 0.2:
        content += bytes(rng.randrange(3000))
    return zstandard.ZstdCompressor().compress(bytes(content))


def make_targets() -> list[Target]:
    """A reader for each kind of payload."""
    rng = np.random.default_rng(1)
    both = (0, 1, 3, 19, K)
    votes = [votes_of(k, rng) for k in both]
    sized = [votes_of(k, rng, sized=True) for k in both]
    merged = [merge([(one, 1 + 300 * number), (votes[-1], 2)], LAYOUT.components) for number, one in enumerate(votes)]
    merged.append(merge([(votes_of(MATRIX_COMPONENTS, rng), 1)], LAYOUT.components))  # all that there can be
    updates = [Update(7, 0.5, 1.0, one) for one in merged]
    signs = [Update(7, 0.5, 1.0, signs_of(one, LAYOUT, "dct", 7)) for one in merged]
    contribution = BYTES_A_COMPONENT * LAYOUT.kept_max(K) + contribution_bytes_max(LAYOUT, K, "tile") + BYTES_BESIDE
    update = BYTES_A_COMPONENT * LAYOUT.components + update_bytes_max(LAYOUT, "tile") + BYTES_BESIDE
    return [
        Target("contribution", lambda data: decode_votes(data, LAYOUT, K), check_votes,
               [encode_votes(one, LAYOUT) for one in votes], contribution),
        Target("contribution with magnitudes", lambda data: decode_votes(data, LAYOUT, K, "tile"), check_votes,
               [encode_votes(one, LAYOUT) for one in sized], contribution),
        Target("update", lambda data: decode_update(data, LAYOUT), check_update("sign"),
               [encode_update(one, LAYOUT) for one in updates + signs], update),
        Target("update with magnitudes", lambda data: decode_update(data, LAYOUT, "tile"), check_update("tile"),
               [encode_update(sized_update(one), LAYOUT) for one in sized], update),
    ]  # fmt: skip


def votes_of(k: int, rng: np.random.Generator, *, sized: bool = False) -> Votes:
    """k uniform components in each tile."""
    parts = [
        np.sort(rng.permutation(MATRIX_COMPONENTS)[:k]) + MATRIX_COMPONENTS * tile
        for tile in range(LAYOUT.matrix_tiles)
    ]
    first = LAYOUT.matrix_components
    parts += [
        np.sort(rng.permutation(VECTOR_COMPONENTS)[:k]) + first + VECTOR_COMPONENTS * tile
        for tile in range(LAYOUT.vector_tiles)
    ]
    components = np.concatenate(parts)
    codes = rng.integers(0, len(TABLE), LAYOUT.tiles if k else 0).astype(np.uint8) if sized else None
    return Votes(components, rng.random(len(components)) < 0.5, codes)


def sized_update(votes: Votes) -> Update:
    merger = MagnitudeMerger(LAYOUT, "dct", 1.0)
    merger.add(votes, 3)
    return Update(7, 0.5, 1.0, merger.merged())


def check_votes(found: object) -> None:
    """What may be merged."""
    assert isinstance(found, Votes)
    assert np.all(np.diff(found.components) > 0), "not ascending"
    assert found.components.min(initial=0) >= 0, "below the tile space"
    assert found.components.max(initial=0) < LAYOUT.components, "beyond the tile space"
    assert len(found.positive) == len(found.components), "signs"
    tiles, counts = tiles_with(found.components, LAYOUT)
    assert counts.max(initial=0) <= K, "too many of a tile"
    assert found.codes is None or len(found.codes) == len(tiles), "codes"


def check_update(magnitude: Magnitude) -> Callable[[object], None]:
    """What may be applied."""

    def check(found: object) -> None:
        assert isinstance(found, Update)
        merged = found.merged
        if isinstance(merged, Signs):
            assert magnitude == "sign", "signs"
            assert len(merged.positive) == LAYOUT.parameters_in(merged.stepped), "signs of parameters"
            return
        assert isinstance(merged, Merged)
        assert np.all(np.diff(merged.components) > 0), "not ascending"
        assert merged.components.max(initial=0) < LAYOUT.components, "beyond the tile space"
        assert np.all(merged.values != 0), "zero"
        assert (merged.scales is None) == (magnitude != "tile"), "scales"

    return check


if __name__ == "__main__":
    main()
