"""Codecs of differences: bytes within their bound, steps as a plain reference computes them, bad bytes refused."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire_proto.contract import Parameter
from thinwire_proto.errors import ConfigError, LocalError, PayloadError
from thinwire_proto.exact.magnitudes import TABLE, UNIT
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.blocks import BLOCK, VALUES, covering_codes
from thinwire_proto.gossip.codec import VERSION, codec_names, make_codec, register_codec

Floats = npt.NDArray[np.float32]
LAYOUT = TileLayout(
    [
        Parameter(name="m", shape=(70, 130)),
        Parameter(name="v", shape=(130,)),
        Parameter(name="s", shape=()),
        Parameter(name="t", shape=(3, 5, 2)),
        Parameter(name="w", shape=(64,)),
    ]
)
NAMES = codec_names()


def difference(seed: int = 1, scale: float = 1e-3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(LAYOUT.parameters, generator=generator)


def tensors(flat: Floats) -> list[Floats]:
    sizes = [math.prod(tensor.shape) for tensor in LAYOUT.tensors]
    return np.split(flat, np.cumsum(sizes)[:-1])


def nearest_value(magnitude: float) -> float:
    """Of the table, on a logarithmic scale."""
    if magnitude < TABLE[0] * UNIT * 2 ** (1 / 16):
        return 0.0
    values = TABLE[1:] * UNIT
    return float(values[np.argmin(np.abs(np.log(values) - math.log(magnitude)))])


def blocks(flat: Floats) -> list[slice]:
    found, start = [], 0
    for tensor in tensors(flat):
        for first in range(0, len(tensor), BLOCK):
            found.append(slice(start + first, start + min(first + BLOCK, len(tensor))))
        start += len(tensor)
    return found


def reference_sign(flat: Floats) -> Floats:
    step = np.empty_like(flat)
    for block in blocks(flat):
        size = nearest_value(float(np.abs(flat[block].astype(np.float64)).mean()))
        step[block] = np.where(flat[block] > 0, np.float32(size), -np.float32(size))
    return step


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(5))
def test_a_body_is_within_its_bound_and_decodes_alike_each_time(name: str, seed: int) -> None:
    codec = make_codec(name, LAYOUT)
    body = codec.encode(difference(seed, 10.0**-seed))
    assert len(body) == codec.bytes_max
    step = codec.decode(body)
    assert step.dtype == torch.float32
    assert step.shape == (LAYOUT.parameters,)
    assert torch.equal(step, make_codec(name, LAYOUT).decode(body))


@pytest.mark.parametrize("name", NAMES)
def test_each_message_brings_the_copy_closer(name: str) -> None:
    codec, left = make_codec(name, LAYOUT), difference()
    for _ in range(6):
        before = float(left.norm())
        left = left - codec.decode(codec.encode(left))
        assert float(left.norm()) < before or before < 1e-5  # the smallest scale


def test_bf16_rounds_to_the_nearest() -> None:
    codec, given = make_codec("bf16", LAYOUT), difference()
    step = codec.decode(codec.encode(given)).numpy()
    bits = given.numpy().view(np.uint32).astype(np.uint64)
    upper = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    np.testing.assert_array_equal(step.view(np.uint32), (upper << 16).astype(np.uint32))


def test_int8_is_within_half_a_unit_of_its_block() -> None:
    codec, given = make_codec("int8", LAYOUT), difference().numpy()
    step = codec.decode(codec.encode(torch.from_numpy(given))).numpy()
    for block in blocks(given):
        largest = np.abs(given[block]).max()
        assert np.abs(step[block] - given[block]).max() <= 0.51 * largest * 2 ** (1 / 8) / 127
        assert np.abs(step[block]).max() <= 1.1 * largest


@pytest.mark.parametrize("seed", range(3))
def test_signs_are_those_of_a_plain_reference(seed: int) -> None:
    codec, given = make_codec("sign", LAYOUT), difference(seed)
    np.testing.assert_array_equal(codec.decode(codec.encode(given)).numpy(), reference_sign(given.numpy()))


def test_a_covering_code_is_large_enough_and_hardly_larger() -> None:
    magnitudes = torch.logspace(-8, 1, 1000)
    values = VALUES[covering_codes(magnitudes)]
    assert (values >= 0.995 * magnitudes.numpy()).all()
    assert (values <= 1.11 * magnitudes.numpy()).all()


@pytest.mark.parametrize("name", NAMES)
def test_no_difference_is_no_step(name: str) -> None:
    codec = make_codec(name, LAYOUT)
    assert not codec.decode(codec.encode(torch.zeros(LAYOUT.parameters))).any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_not_sent(name: str, bad: float) -> None:
    given = difference()
    given[100] = bad
    with pytest.raises(LocalError, match="diverged"):
        make_codec(name, LAYOUT).encode(given)


@pytest.mark.parametrize("name", ["dense", "bf16"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 2.0**31, -(2.0**31)])
def test_numbers_that_would_spoil_a_copy_are_refused(name: str, bad: float) -> None:
    codec = make_codec(name, LAYOUT)
    upper = np.float32(bad).view(np.uint32).tobytes()
    width = 4 if name == "dense" else 2
    body = codec.encode(difference())
    with pytest.raises(PayloadError, match="not finite, or larger"):
        codec.decode(body[:1] + upper[-width:] + body[1 + width :])


@pytest.mark.parametrize("name", NAMES)
def test_a_body_of_another_size_or_version_is_refused(name: str) -> None:
    codec = make_codec(name, LAYOUT)
    body = codec.encode(difference())
    for bad in (b"", body[:-1], body + b"\0", bytes([VERSION + 1]) + body[1:], bytes(codec.bytes_max + 1)):
        with pytest.raises(PayloadError):
            codec.decode(bad)


def test_bits_after_the_last_sign_are_refused() -> None:
    codec = make_codec("sign", LAYOUT)
    assert LAYOUT.parameters % 8
    body = codec.encode(difference())
    with pytest.raises(PayloadError, match="after the last sign"):
        codec.decode(body[:-1] + bytes([body[-1] | 0x80]))


@given(st.lists(st.floats(-1e9, 1e9, width=32), min_size=1, max_size=80), st.sampled_from(NAMES))
@settings(max_examples=200, deadline=None)
def test_any_finite_difference_can_be_sent(values: list[float], name: str) -> None:
    layout = TileLayout([Parameter(name="v", shape=(len(values),))])
    codec, given = make_codec(name, layout), torch.tensor(values)
    body = codec.encode(given)
    assert len(body) <= codec.bytes_max
    step = codec.decode(body)
    assert torch.isfinite(step).all()
    if name == "dense":
        assert torch.equal(step, torch.where(given.abs() < torch.finfo().tiny, 0.0, given))


@pytest.mark.parametrize("name", ["none", "sign:3", "topk:64", ""])
def test_names_without_a_codec_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="codec"):
        make_codec(name, LAYOUT)


def test_a_name_is_taken_once() -> None:
    make_codec("dense", LAYOUT)
    with pytest.raises(ConfigError, match="taken"):
        register_codec("dense")(type(make_codec("dense", LAYOUT)))


def test_what_is_no_difference_of_the_layout_is_refused() -> None:
    codec = make_codec("sign", LAYOUT)
    for bad in (difference()[:-1], difference().double(), difference().view(-1, 1)):
        with pytest.raises(LocalError, match="a difference is float32"):
            codec.encode(bad)
