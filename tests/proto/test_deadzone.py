"""The codec of five levels: about a bit a parameter whatever the numbers are, and less is left than by their signs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import zstandard

from thinwire_proto.contract import Parameter
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.blocks import BLOCK
from thinwire_proto.gossip.codec import make_codec
from thinwire_proto.gossip.codecs.deadzone import BITS_MAX, LEVELS, SIZE_MAX
from thinwire_proto.gossip.scales import VALUES

SHAPE = (300, 700)
LAYOUT = TileLayout([Parameter(name="m", shape=SHAPE)])
BLOCKS = -(-LAYOUT.parameters // BLOCK)
HEAD = 1 + BLOCKS
"""Bytes before the sizes of the levels: a version, and the scale of each block."""


def normal(numbers: torch.Tensor) -> torch.Tensor:
    return numbers


def laplacian(numbers: torch.Tensor) -> torch.Tensor:
    return numbers * torch.distributions.Exponential(1.0).sample(numbers.shape).sqrt()


def nearly_equal(numbers: torch.Tensor) -> torch.Tensor:
    """As the first steps of Adam."""
    return numbers.sign() * (1 + 0.1 * numbers.abs())


def few(numbers: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.rand(numbers.shape) < 0.003, numbers, 0.0)


def left_by(name: str, given: torch.Tensor) -> float:
    """The part of the energy of a difference that one message leaves."""
    codec = make_codec(name, LAYOUT)
    return float((given - codec.decode(codec.encode(given))).norm() ** 2 / given.norm() ** 2)


@pytest.mark.parametrize(
    ("kind", "most"),
    [(normal, 0.99), (laplacian, 0.6), (nearly_equal, 1.0), (few, 0.4)],
    ids=["normal", "laplacian", "nearly equal", "few"],
)
@pytest.mark.parametrize("scale", [1e-5, 1.0])
def test_as_many_bits_as_signs_leave_less(
    kind: Callable[[torch.Tensor], torch.Tensor], most: float, scale: float
) -> None:
    """most: of what signs leave."""
    torch.manual_seed(1)
    given = scale * kind(torch.randn(LAYOUT.parameters))
    body = make_codec("deadzone", LAYOUT).encode(given)
    assert 8 * len(body) / LAYOUT.parameters < 32 / 30  # thirty times fewer than float32
    assert left_by("deadzone", given) <= most * left_by("sign", given) + 1e-6


def test_a_step_is_the_scale_of_the_block_times_the_size_of_the_level() -> None:
    """By the description of the bytes: base 5, three digits a byte, the lowest first."""
    torch.manual_seed(2)
    given = torch.randn(LAYOUT.parameters)
    codec = make_codec("deadzone", LAYOUT)
    body = codec.encode(given)
    sizes = np.frombuffer(body, "<f4", LEVELS, offset=HEAD)
    packed = zstandard.ZstdDecompressor().decompress(body[HEAD + 4 * LEVELS :])
    digits = [byte // 5**place % 5 - 2 for byte in packed for place in range(3)][: LAYOUT.parameters]
    of_digit = {0: np.float32(0)} | {sign * (1 + n): sign * size for n, size in enumerate(sizes) for sign in (1, -1)}
    expected = [of_digit[digit] * VALUES[body[1 + at // BLOCK]] for at, digit in enumerate(digits)]
    np.testing.assert_array_equal(codec.decode(body).numpy(), np.array(expected, np.float32))
    assert {-2, -1, 0, 1, 2} == set(digits)
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("size", [-1.0, SIZE_MAX * 1.01, float("nan"), float("inf")])
def test_sizes_that_cannot_be_are_refused(size: float) -> None:
    codec = make_codec("deadzone", LAYOUT)
    body = bytearray(codec.encode(torch.ones(LAYOUT.parameters)))
    body[HEAD : HEAD + 4] = np.array([size], "<f4").tobytes()
    with pytest.raises(PayloadError, match="sizes of levels are from 0 to"):
        codec.decode(bytes(body))


def test_digits_that_need_more_bits_than_allowed_are_refused() -> None:
    """Its bound is what a node makes room for, so it holds for any sender."""
    codec = make_codec("deadzone", LAYOUT)
    body = codec.encode(torch.ones(LAYOUT.parameters))
    any_digits = np.random.default_rng(1).integers(0, 125, -(-LAYOUT.parameters // 3), np.uint8)
    longer = body[: HEAD + 4 * LEVELS] + zstandard.ZstdCompressor().compress(any_digits.tobytes())
    assert len(longer) * 8 / LAYOUT.parameters > BITS_MAX
    with pytest.raises(PayloadError, match="a body has at most"):
        codec.decode(longer)
