"""A fuzz target for the payload codec: `make fuzz`.

For any bytes, a reader must return votes or an update of the contract, or raise PayloadError, within the contract's
memory bound.

Inputs are damaged valid payloads. Bytes are changed, cut off or appended, or the fields are replaced by those of other
payloads, other numbers, nested arrays, more or fewer fields, and frames with other contents, so that the checks behind
the first one are reached too. Each payload that can be read is written and read again, and must be equal.

The measured memory is that of Python and numpy, not that of zstandard. The latter is bounded by the size in each
frame's header, which is checked first.
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
"""For contributions. It is so large that the memory bound is well above the overhead of any call."""
UPDATE_LAYOUT = TileLayout([Parameter(name="m", shape=(100, 150)), Parameter(name="v", shape=(130,))])
"""For updates, which may contain all components."""
K = 24
BYTES_A_COMPONENT = 40
"""Memory that a reader may use for each component that the contract allows: int64 numbers, copies, and
unpacked frames."""
BYTES_OVERHEAD = 1 << 13
PROGRESS_EVERY_S = 10.0


@dataclass(frozen=True)
class Target:
    """A reader of the codec with its writer, valid payloads, and its memory bound."""

    name: str
    read: Callable[[bytes], object]
    write: Callable[[Any], bytes]
    check: Callable[[object], None]
    valid: list[bytes]
    memory_max: int


class FuzzFailure(Exception):
    """The codec violated its specification."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="default 1000000")
    parser.add_argument("--seed", type=int, default=1, help="default 1")
    arguments = parser.parse_args()
    try:
        print(fuzz(arguments.inputs, arguments.seed))
    except FuzzFailure as error:
        again = f"python -m fuzz --inputs {arguments.inputs} --seed {arguments.seed}"
        raise SystemExit(f"{error}\nrun it again with: {again}") from None


def fuzz(inputs: int, seed: int) -> str:
    """Run the inputs and return a summary line. Raises FuzzFailure at the first failing input."""
    rng, targets = random.Random(seed), make_targets()
    fields = [field for target in targets for data in target.valid for field in msgpack.unpackb(data)]
    read = refused = 0
    largest, began = dict.fromkeys((target.name for target in targets), 0.0), time.monotonic()
    printed = began
    tracemalloc.start()
    try:
        for number in range(inputs):
            target = targets[number % len(targets)]
            data = damaged(rng, target.valid, fields)
            used = try_one(target, data)
            read += used.read
            refused += not used.read
            largest[target.name] = max(largest[target.name], used.memory / target.memory_max)
            if sys.stderr.isatty() and time.monotonic() - printed > PROGRESS_EVERY_S:
                printed = time.monotonic()
                print(f"{number + 1:,} of {inputs:,}", end="\r", file=sys.stderr, flush=True)
    finally:
        tracemalloc.stop()
    most = ", ".join(f"{name} {share:.0%}" for name, share in largest.items())
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
        raise FuzzFailure(f"{target.name}: {type(error).__name__}: {error}: from {data.hex()}") from error
    used = tracemalloc.get_traced_memory()[1] - before
    if used > target.memory_max:
        raise FuzzFailure(f"{target.name}: {used} bytes of memory, more than {target.memory_max}: from {data.hex()}")
    if read:
        try:
            target.check(found)
            written = target.write(found)
            assert target.write(target.read(written)) == written, "since it changes when written and read again"
        except AssertionError as error:
            raise FuzzFailure(f"{target.name}: the result is not of the contract {error}: {data.hex()}") from error
    return Used(read, used)


def try_one_traced(target: Target, data: bytes) -> Used:
    """`try_one` with its own memory tracing."""
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
        index = rng.randrange(len(fields))
        fields[index] = other_field(rng, fields[index], others)
    if kind == 8:
        index = rng.randrange(len(fields))
        fields[index : index + 1] = rng.choice([[], [fields[index], rng.choice(others)], [[fields[index]]]])
    return bytes(msgpack.packb(fields))


def _nested(rng: random.Random) -> bytes:
    """Thousands of arrays in an array, each one byte of input."""
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
    """One target for each kind of payload."""
    rng = np.random.default_rng(1)
    numbers = (0, 1, 3, 19, K)
    votes = [votes_of(LAYOUT, k, rng) for k in numbers]
    sized = [votes_of(LAYOUT, k, rng, sized=True) for k in numbers]
    counted = [votes_of(UPDATE_LAYOUT, k, rng) for k in numbers]
    contributions = [[(one, 1 + 300 * number), (counted[-1], 2)] for number, one in enumerate(counted)]
    contributions.append([(votes_of(UPDATE_LAYOUT, MATRIX_COMPONENTS, rng), 1)])  # the largest possible update
    merged = [merge(of_round, UPDATE_LAYOUT.components) for of_round in contributions]
    sized_updates = [sized_update(votes_of(UPDATE_LAYOUT, k, rng, sized=True)) for k in numbers]
    updates = [Update(7, 0.5, 1.0, one) for one in merged]
    signs = [Update(7, 0.5, 1.0, signs_of(one, UPDATE_LAYOUT, "dct", 7)) for one in merged]
    contribution = (
        BYTES_A_COMPONENT * LAYOUT.selected_max(K) + contribution_bytes_max(LAYOUT, K, "tile") + BYTES_OVERHEAD
    )
    update = BYTES_A_COMPONENT * UPDATE_LAYOUT.components + update_bytes_max(UPDATE_LAYOUT, "tile") + BYTES_OVERHEAD
    return [
        Target("contribution", lambda data: decode_votes(data, LAYOUT, K), write_votes, check_votes,
               [write_votes(one) for one in votes], contribution),
        Target("contribution with magnitudes", lambda data: decode_votes(data, LAYOUT, K, "tile"), write_votes,
               check_votes, [write_votes(one) for one in sized], contribution),
        Target("update", lambda data: decode_update(data, UPDATE_LAYOUT), write_update, check_update("sign"),
               [write_update(one) for one in updates + signs], update),
        Target("update with magnitudes", lambda data: decode_update(data, UPDATE_LAYOUT, "tile"), write_update,
               check_update("tile"), [write_update(one) for one in sized_updates], update),
    ]  # fmt: skip


def write_votes(votes: Votes) -> bytes:
    return encode_votes(votes, LAYOUT)


def write_update(update: Update) -> bytes:
    return encode_update(update, UPDATE_LAYOUT)


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
    merger = MagnitudeMerger(UPDATE_LAYOUT, "dct", 1.0)
    merger.add(votes, 3)
    return Update(7, 0.5, 1.0, merger.merged())


def check_votes(found: object) -> None:
    """Assert that the votes can be merged."""
    assert isinstance(found, Votes)
    assert np.all(np.diff(found.components) > 0), "not ascending"
    assert found.components.min(initial=0) >= 0, "below the tile space"
    assert found.components.max(initial=0) < LAYOUT.components, "beyond the tile space"
    assert len(found.positive) == len(found.components), "signs"
    tiles, counts = tiles_with(found.components, LAYOUT)
    assert counts.max(initial=0) <= K, "too many in a tile"
    assert found.codes is None or len(found.codes) == len(tiles), "codes"


def check_update(magnitude: Magnitude) -> Callable[[object], None]:
    """Return a function that asserts that an update can be applied."""

    def check(found: object) -> None:
        assert isinstance(found, Update)
        merged = found.merged
        assert 0 <= found.learning_rate <= 1, "rate"
        assert 0 <= found.decay <= 1, "decay"
        if isinstance(merged, Signs):
            assert magnitude == "sign", "signs"
            assert len(merged.stepped) == UPDATE_LAYOUT.tiles, "tiles"
            assert len(merged.positive) == UPDATE_LAYOUT.parameters_in(merged.stepped), "signs of parameters"
            return
        assert isinstance(merged, Merged)
        assert np.all(np.diff(merged.components) > 0), "not ascending"
        assert merged.components.min(initial=0) >= 0, "below the tile space"
        assert merged.components.max(initial=0) < UPDATE_LAYOUT.components, "beyond the tile space"
        assert len(merged.values) == len(merged.components), "values"
        sizes = np.abs(merged.values.astype(np.int64))
        assert np.all((sizes >= 1) & (sizes <= (VOTE_MAX if magnitude == "tile" else WEIGHT_SUM_MAX))), "sizes"
        assert (merged.scales is None) == (magnitude != "tile"), "scales"
        if merged.scales is not None:
            assert len(merged.scales) == len(tiles_with(merged.components, UPDATE_LAYOUT)[0]), "scales of tiles"
            assert np.all((merged.scales >= SCALE_MIN) & (merged.scales <= SCALE_MAX)), "range of scales"

    return check


if __name__ == "__main__":
    main()
