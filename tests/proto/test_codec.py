"""The codec returns what was encoded, and refuses anything that is not a valid payload."""

from __future__ import annotations

import tracemalloc

import msgpack
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from support.small import random_sized_votes, shapes_contract
from thinwire_proto.contract import Magnitude, Parameter, ScheduleSpec
from thinwire_proto.contract.schedule import RATE_MIN
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact import schedule as rates
from thinwire_proto.exact.aggregation import SizedMerger
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import CHUNK, Merged, Votes
from thinwire_proto.wire.codec import (
    VERSION,
    contribution_bytes_max,
    decode_update,
    decode_votes,
    encode_update,
    encode_votes,
    update_bytes_max,
)
from thinwire_proto.wire.component_codec import GAPS

LAYOUT = TileLayout(shapes_contract().parameters)
OTHERS: tuple[Magnitude, ...] = ("clipped", "tile")
EMPTY = Votes(np.zeros(0, np.int64), np.zeros(0, np.bool_))
RATE = float(np.float32(1e-3))


def sized_update(step: int, *votes: Votes) -> Update:
    merger = SizedMerger(LAYOUT, 1.0)
    for weight, one in enumerate(votes, 1):
        merger.add(one, weight)
    return Update(step, RATE, 1.0, merger.merged())


@given(st.integers(1, 4096), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_votes_with_magnitudes_round_trip(k: int, seed: int) -> None:
    votes = random_sized_votes(LAYOUT, k, seed)
    data = encode_votes(votes, LAYOUT)
    again = decode_votes(data, LAYOUT, k, "tile")
    assert votes.codes is not None
    assert again.codes is not None
    assert np.array_equal(again.components, votes.components)
    assert np.array_equal(again.positive, votes.positive)
    assert np.array_equal(again.codes, votes.codes)
    assert len(data) <= contribution_bytes_max(LAYOUT, k, "tile")


@given(st.integers(1, 4096), st.integers(1, 4), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_updates_with_magnitudes_round_trip(k: int, nodes: int, seed: int) -> None:
    update = sized_update(seed, *(random_sized_votes(LAYOUT, k, seed + node) for node in range(nodes)))
    data = encode_update(update, LAYOUT)
    again = decode_update(data, LAYOUT, "tile")
    assert isinstance(update.merged, Merged)
    assert isinstance(again.merged, Merged)
    assert update.merged.scales is not None
    assert again.merged.scales is not None
    assert (again.step, again.learning_rate, again.decay) == (seed, RATE, 1.0)
    assert np.array_equal(again.merged.components, update.merged.components)
    assert np.array_equal(again.merged.values, update.merged.values)
    assert again.merged.scales.tobytes() == update.merged.scales.tobytes()
    assert len(data) <= update_bytes_max(LAYOUT, "tile")


def payload(*fields: object) -> bytes:
    return bytes(msgpack.packb([VERSION, *fields]))


def packed(data: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(data)


NONE = packed(b"")
ONE = (GAPS, 1, packed(b"\x00"), NONE)
"""The fields of a payload with one component, the very first."""


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "not a contribution"),
        (msgpack.packb({"a": 1}), "not a contribution"),
        (msgpack.packb([1, 0, b"", b""]), "not a contribution of version 2"),
        (payload(*ONE), "wrong types"),
        (payload(GAPS, 1.0, packed(b"\x00"), NONE, b"\x01"), "wrong types"),
        (payload(GAPS, -1, packed(b"\x00"), NONE, b"\x01"), "wrong types"),
        (payload(GAPS, True, packed(b"\x00"), NONE, b"\x01"), "wrong types"),
        (payload(2, 1, packed(b"\x00"), NONE, b"\x01"), "this has form 2"),
        (payload(GAPS, 2, packed(b"\x00"), NONE, b"\x01"), "do not give the 2 components"),
        (payload(GAPS, 1, packed(b"\x00\xff"), NONE, b"\x01"), "do not give the 1 components"),
        (payload(GAPS, 10**9, packed(b"\x00"), NONE, b"\x01"), "the payload announces 1000000000"),
        (payload(*ONE, b""), "1 signs need 1 bytes"),
        (payload(*ONE, b"\x03"), "bits after the last sign"),
        (payload(GAPS, 1, b"no frame", NONE, b"\x01"), "cannot be decompressed"),
        (payload(GAPS, 1, packed(b"\x00") + b"x", NONE, b"\x01"), "cannot be decompressed"),
        (payload(GAPS, 1, packed(b"\x00")[:-1], NONE, b"\x01"), "cannot be decompressed"),
        (payload(GAPS, 1, packed(b"\xff" * 400 + b"\x00"), NONE, b"\x01"), "must state its size, at most"),
        (payload(GAPS, 33, packed(b"\x00" * 33), NONE, b"\xff" * 4 + b"\x01"), "tile 0 has 33 votes; k allows 32"),
        (b"\0" * 1_000_000, "a contribution has at most"),
    ],
)
def test_error_names_the_fault(data: bytes, expected: str) -> None:
    with pytest.raises(PayloadError) as error:
        decode_votes(data, LAYOUT, 32)
    assert expected in str(error.value)


def test_decompression_bomb_is_refused() -> None:
    """A small payload that announces gigabytes is refused before the memory is allocated."""
    bomb = zstandard.ZstdCompressor().compress(b"\0" * (1 << 28))
    with pytest.raises(PayloadError, match="must state its size"):
        decode_votes(payload(GAPS, 100, bomb, NONE, b"\0" * 13), LAYOUT, 4096)
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    unsized = stream.compress(b"\0" * 100) + stream.flush()
    with pytest.raises(PayloadError, match="must state its size"):
        decode_votes(payload(GAPS, 100, unsized, NONE, b"\0" * 13), LAYOUT, 32)


def test_nested_arrays_are_refused_before_they_take_memory() -> None:
    """One byte can be an empty array, which would take sixty bytes of memory."""
    inside = b"\x9f" + b"\x9f".join(b"\x90" * 14 for _ in range(90))
    tracemalloc.start()
    with pytest.raises(PayloadError, match="an array inside an array"):
        decode_votes(inside, LAYOUT, 32)
    assert tracemalloc.get_traced_memory()[1] < 10 * len(inside)
    tracemalloc.stop()
    with pytest.raises(PayloadError, match="not a contribution"):
        decode_votes(payload(GAPS, 1, packed(b"\x00"), [], b"\x01"), LAYOUT, 32)


def test_merged_votes_outside_their_bounds_are_refused() -> None:
    one = int(np.float32(1).view(np.uint32))
    data = payload(0, one, one, *ONE, b"\x01", 8, packed(b"\xff"), packed(b"\x00\x80"))
    with pytest.raises(PayloadError, match="between 1 and 32767"):
        decode_update(data, LAYOUT)


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        (packed(b""), "1 codes of tiles need 1 bytes; there are 0"),
        (packed(b"\x05\x06"), "must state its size, at most 1 bytes"),
        (b"no frame", "cannot be decompressed"),
    ],
)
def test_codes_that_do_not_match_the_tiles_are_refused(codes: bytes, expected: str) -> None:
    with pytest.raises(PayloadError) as error:
        decode_votes(payload(*ONE, b"\x01", codes), LAYOUT, 32, "tile")
    assert expected in str(error.value)


@pytest.mark.parametrize(
    ("sizes", "scales", "expected"),
    [
        ((8, packed(b"\x7f"), packed(b"")), b"\x00\x38", "between 1 and 127"),
        ((2, packed(b"\xc0"), packed(b"\xff\xff")), b"\x00\x38", "between 1 and 127"),
        ((2, packed(b""), packed(b"")), b"\x00\x38", "1 bytes of merged votes need 1 bytes"),
        ((3, packed(b"\x00"), packed(b"")), b"\x00\x38", "must be one of 1, 2, 4, 8, not 3"),
        ((2, packed(b"\x01"), packed(b"")), b"\x00\x38", "bits after the last number"),
        ((2, packed(b"\xc0"), packed(b"")), b"\x00\x38", "1 large merged votes need 2 bytes"),
        ((8, packed(b"\x01"), packed(b"")), b"\x38", "1 scales of tiles need 2 bytes"),
        ((8, packed(b"\x01"), packed(b"")), b"\x00\x00", "the scale of a tile must lie between"),
        ((8, packed(b"\x01"), packed(b"")), b"\x00\xb8", "the scale of a tile must lie between"),  # negative
        ((8, packed(b"\x01"), packed(b"")), b"\xc0\x7f", "the scale of a tile must lie between"),  # NaN
        ((8, packed(b"\x01"), packed(b"")), b"\x81\x3f", "the scale of a tile must lie between"),  # more than 1
    ],
)
def test_sizes_outside_their_bounds_are_refused(sizes: tuple[int, bytes, bytes], scales: bytes, expected: str) -> None:
    one = int(np.float32(1).view(np.uint32))
    data = payload(0, one, one, *ONE, b"\x01", *sizes, packed(scales))
    with pytest.raises(PayloadError) as error:
        decode_update(data, LAYOUT, "tile")
    assert expected in str(error.value)


@pytest.mark.parametrize(
    "section",
    [
        {"learning_rate": RATE_MIN, "warmup_steps": 2, "steps": 10},
        {"learning_rate": 2e-37, "floor": 0.0, "warmup_steps": 0, "steps": 100},
        {"learning_rate": 1.0, "floor": 1e-40, "warmup_steps": 0, "steps": 10},
        {"learning_rate": 0.1, "weight_decay": 9.9999998, "warmup_steps": 0, "steps": 10},
    ],
)
def test_nodes_can_read_every_rate_of_a_valid_schedule(section: dict[str, float]) -> None:
    schedule = ScheduleSpec.model_validate(section)
    nothing = Merged(np.zeros(0, np.int64), np.zeros(0, np.int16))
    for step in range(schedule.steps + 1):
        rate, decay = rates.learning_rate(schedule, step), rates.decay(schedule, step)
        read = decode_update(encode_update(Update(step, rate, decay, nothing), LAYOUT), LAYOUT)
        assert (read.learning_rate, read.decay) == (rate, decay)


@pytest.mark.parametrize("shape", [(640, 640), (64,)])
@pytest.mark.parametrize("chunk", [8, 64, 4096])
def test_chunks_change_no_byte(shape: tuple[int, ...], chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense and sparse votes, with gaps longer than an escape at the edges of chunks."""
    layout = TileLayout([Parameter(name="m", shape=shape), Parameter(name="v", shape=(70,))])
    rng = np.random.default_rng(chunk)
    for share in (0.5, 0.02, 0.001):
        components = np.flatnonzero(rng.random(layout.components) < share)
        values = rng.integers(1, 300, len(components)).astype(np.int16) * rng.choice(np.array([-1, 1], np.int16), 1)
        merged = Merged(components, values)
        whole = encode_update(Update(3, RATE, 1.0, merged), layout)
        with monkeypatch.context() as patch:
            for module in ("codec", "component_codec"):
                patch.setattr(f"thinwire_proto.wire.{module}.CHUNK", chunk)
            assert encode_update(Update(3, RATE, 1.0, merged), layout) == whole
            found = decode_update(whole, layout, "clipped").merged
        assert isinstance(found, Merged)
        assert np.array_equal(found.components, components)
        assert np.array_equal(found.values, values)


def test_an_update_is_encoded_in_little_more_memory_than_its_bytes() -> None:
    layout = TileLayout([Parameter(name="m", shape=(4096, 4096))])
    rng = np.random.default_rng(0)
    components = np.flatnonzero(rng.random(layout.components) < 0.1)
    merged = Merged(components, rng.integers(1, 4, len(components)).astype(np.int16))
    update = Update(0, RATE, 1.0, merged)
    size = len(encode_update(update, layout))
    tracemalloc.start()
    encode_update(update, layout)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    chunks = 8 * 8 * CHUNK  # eight arrays of a chunk
    assert peak < 3 * size + chunks < 37 * len(components)
