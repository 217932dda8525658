"""A fuzz target for the payload codec: `make fuzz`. Whatever the bytes are, what comes out is votes or an update of
the contract, or the one typed error; and no more memory is taken than the contract bounds.

Inputs are valid payloads, damaged: bytes changed, cut off, made longer, or taken apart and put together again with
fields of other payloads, other numbers, arrays inside, more or fewer fields, and frames of other contents, so that what
lies behind the first check is reached too. What is read is written again, and read again as the same.

Memory is what Python and numpy take; what zstandard takes for itself is not seen. It is bounded by the size that each
frame states, which is checked first.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import zstandard

from thinwire_proto.contract import WEIGHT_SUM_MAX, Magnitude, Parameter
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.decode import VOTE_MAX
from thinwire_proto.exact.magnitudes import SCALE_MAX, SCALE_MIN, TABLE, MagnitudeMerger, tiles_with
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, VECTOR_COMPONENTS, TileLayout
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Merged, Signs, Votes, merge
from thinwire_proto.wire.codec import (
    contribution_bytes_max,
    decode_update,
    decode_votes,
    encode_update,
    encode_votes,
    update_bytes_max,
)
from thinwire_proto.wire.sign_form import signs_of

LAYOUT = TileLayout([Parameter(name="m", shape=(400, 650)), Parameter(name="v", shape=(130,))])
"""Of contributions: large enough that what they may take is well above what any call takes."""
OF_UPDATES = TileLayout([Parameter(name="m", shape=(100, 150)), Parameter(name="v", shape=(130,))])
"""Of updates, which may hold all that there is."""
K = 24
BYTES_A_COMPONENT = 40
"""Memory that reading may take, for each component that the contract allows: components as int64, their copies on the
way, and what a frame unpacks to."""
BYTES_BESIDE = 1 << 13
SAID_EVERY_S = 10.0


@dataclass(frozen=True)
class Target:
    """One of the codec's readers and its writer, valid payloads for it, and how much memory it may take."""

    what: str
    read: Callable[[bytes], object]
    write: Callable[[Any], bytes]
    check: Callable[[object], None]
    valid: list[bytes]
    memory_max: int


class Broken(Exception):
    """The codec did what it must not."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="default 1000000")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    arguments = parser.parse_args()
    try:
        print(fuzz(arguments.inputs, arguments.seed))
    except Broken as error:
        again = f"python -m fuzz --inputs {arguments.inputs} --seed {arguments.seed}"
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
            written = target.write(found)
            assert target.write(target.read(written)) == written, "and is another when it is written and read again"
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
    kind = rng.randrange(9)
    if kind == 0:
        return rng.choice([rng.randbytes(rng.randrange(200)), data + rng.randbytes(rng.randrange(1, 40)), _nested(rng)])
    if kind == 1:
        return data[: rng.randrange(len(data))]
    if kind <= 4:
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 5)):
            changed[rng.randrange(len(changed))] = rng.randrange(256)
        return bytes(changed)
    fields = msgpack.unpackb(data)
    for _ in range(rng.randrange(1, 3)):
        place = rng.randrange(len(fields))
        fields[place] = other_field(rng, fields[place], others)
    if kind == 8:
        place = rng.randrange(len(fields))
        fields[place : place + 1] = rng.choice([[], [fields[place], rng.choice(others)], [[fields[place]]]])
    return bytes(msgpack.packb(fields))


def _nested(rng: random.Random) -> bytes:
    """Arrays in an array, thousands of them: a byte of input each."""
    return b"\x9f" + b"\x9f".join(b"\x90" * 14 for _ in range(rng.randrange(1, 3000)))


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
    numbers = (0, 1, 3, 19, K)
    votes = [votes_of(LAYOUT, k, rng) for k in numbers]
    sized = [votes_of(LAYOUT, k, rng, sized=True) for k in numbers]
    counted = [votes_of(OF_UPDATES, k, rng) for k in numbers]
    everybody = [[(one, 1 + 300 * number), (counted[-1], 2)] for number, one in enumerate(counted)]
    everybody.append([(votes_of(OF_UPDATES, MATRIX_COMPONENTS, rng), 1)])  # all that there can be
    merged = [merge(of_round, OF_UPDATES.components) for of_round in everybody]
    sized_updates = [sized_update(votes_of(OF_UPDATES, k, rng, sized=True)) for k in numbers]
    updates = [Update(7, 0.5, 1.0, one) for one in merged]
    signs = [Update(7, 0.5, 1.0, signs_of(one, OF_UPDATES, "dct", 7)) for one in merged]
    contribution = BYTES_A_COMPONENT * LAYOUT.selected_max(K) + contribution_bytes_max(LAYOUT, K, "tile") + BYTES_BESIDE
    update = BYTES_A_COMPONENT * OF_UPDATES.components + update_bytes_max(OF_UPDATES, "tile") + BYTES_BESIDE
    return [
        Target("contribution", lambda data: decode_votes(data, LAYOUT, K), written_votes, check_votes,
               [written_votes(one) for one in votes], contribution),
        Target("contribution with magnitudes", lambda data: decode_votes(data, LAYOUT, K, "tile"), written_votes,
               check_votes, [written_votes(one) for one in sized], contribution),
        Target("update", lambda data: decode_update(data, OF_UPDATES), written_update, check_update("sign"),
               [written_update(one) for one in updates + signs], update),
        Target("update with magnitudes", lambda data: decode_update(data, OF_UPDATES, "tile"), written_update,
               check_update("tile"), [written_update(one) for one in sized_updates], update),
    ]  # fmt: skip


def written_votes(votes: Votes) -> bytes:
    return encode_votes(votes, LAYOUT)


def written_update(update: Update) -> bytes:
    return encode_update(update, OF_UPDATES)


def votes_of(layout: TileLayout, k: int, rng: np.random.Generator, *, sized: bool = False) -> Votes:
    """k uniform components in each tile."""
    parts = [
        np.sort(rng.permutation(MATRIX_COMPONENTS)[:k]) + MATRIX_COMPONENTS * tile
        for tile in range(layout.matrix_tiles)
    ]
    first = layout.matrix_components
    parts += [
        np.sort(rng.permutation(VECTOR_COMPONENTS)[:k]) + first + VECTOR_COMPONENTS * tile
        for tile in range(layout.vector_tiles)
    ]
    components = np.concatenate(parts)
    codes = rng.integers(0, len(TABLE), layout.tiles if k else 0).astype(np.uint8) if sized else None
    return Votes(components, rng.random(len(components)) < 0.5, codes)


def sized_update(votes: Votes) -> Update:
    merger = MagnitudeMerger(OF_UPDATES, "dct", 1.0)
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
        assert 0 <= found.learning_rate <= 1, "rate"
        assert 0 <= found.decay <= 1, "decay"
        if isinstance(merged, Signs):
            assert magnitude == "sign", "signs"
            assert len(merged.stepped) == OF_UPDATES.tiles, "tiles"
            assert len(merged.positive) == OF_UPDATES.parameters_in(merged.stepped), "signs of parameters"
            return
        assert isinstance(merged, Merged)
        assert np.all(np.diff(merged.components) > 0), "not ascending"
        assert merged.components.min(initial=0) >= 0, "below the tile space"
        assert merged.components.max(initial=0) < OF_UPDATES.components, "beyond the tile space"
        assert len(merged.values) == len(merged.components), "values"
        sizes = np.abs(merged.values.astype(np.int64))
        assert np.all((sizes >= 1) & (sizes <= (VOTE_MAX if magnitude == "tile" else WEIGHT_SUM_MAX))), "sizes"
        assert (merged.scales is None) == (magnitude != "tile"), "scales"
        if merged.scales is not None:
            assert len(merged.scales) == len(tiles_with(merged.components, OF_UPDATES)[0]), "scales of tiles"
            assert np.all((merged.scales >= SCALE_MIN) & (merged.scales <= SCALE_MAX)), "range of scales"

    return check


if __name__ == "__main__":
    main()
