"""A fingerprint stands for a replica's bits: same bits same number, one bit more another."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from thinwire_proto.exact import fingerprint as module
from thinwire_proto.exact.fingerprint import fingerprint, fingerprint_of_pieces
from thinwire_proto.exact.mix64 import GOLDEN, MASK, mix64


def dumb(tensors: list[torch.Tensor], nonce: int) -> int:
    """The formula, one Python integer at a time."""
    total = 0
    for number, tensor in enumerate(tensors):
        key = mix64((nonce + (number + 1) * GOLDEN) & MASK)
        for position, bits in enumerate(tensor.numpy().reshape(-1).view(np.uint32).tolist()):
            total += mix64(((position << 32) | bits) ^ key)
    return total & MASK


def tensors_of(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in ((7, 13), (1,), (50,))]


@given(st.integers(0, MASK), st.integers(0, 100))
@settings(max_examples=30, deadline=None)
def test_it_is_what_the_formula_says(nonce: int, seed: int) -> None:
    tensors = tensors_of(seed)
    assert fingerprint(tensors, nonce) == dumb(tensors, nonce)
    elsewhere = sum(
        module._sum(tensor.view(-1).view(torch.int32), mix64(nonce + (number + 1) * GOLDEN))
        for number, tensor in enumerate(tensors)
    )
    assert elsewhere & MASK == dumb(tensors, nonce)


@given(st.integers(0, 2), st.integers(0, 31), st.data())
@settings(max_examples=50, deadline=None)
def test_any_one_bit_changes_it(tensor: int, bit: int, data: st.DataObject) -> None:
    tensors = tensors_of(1)
    before = fingerprint(tensors, 9)
    place = data.draw(st.integers(0, tensors[tensor].numel() - 1))
    tensors[tensor].view(-1).view(torch.int32)[place] ^= torch.tensor(
        np.uint32(1 << bit).view(np.int32).item(), dtype=torch.int32
    )
    assert fingerprint(tensors, 9) != before


@given(cuts=st.lists(st.integers(0, 3000), max_size=3), chunk=st.sampled_from([1 << 5, 1 << 9, 1 << 16]))
@settings(max_examples=30, deadline=None)
def test_those_of_all_parts_add_up_to_that_of_the_whole(cuts: list[int], chunk: int) -> None:
    tensors = [torch.randn(3000), torch.randn(50, 60)]
    edges = [0, *sorted(cuts), 3000]
    total = other = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CACHED_CHUNK", chunk)
        for first, last in pairwise(edges):
            parts = [tensor.view(-1)[first:last] for tensor in tensors]
            total += fingerprint_of_pieces([(number, first, part) for number, part in enumerate(parts)], 7)
            keys = [mix64(7 + (number + 1) * GOLDEN) for number in range(2)]
            other += sum(module._sum(part.view(torch.int32), key, first) for part, key in zip(parts, keys, strict=True))
    assert total & MASK == other & MASK == fingerprint(tensors, 7)


def test_the_way_of_a_cpu_and_that_of_other_devices_agree_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    bits = torch.randn(37_000).view(torch.int32)
    key = mix64(5)
    expected = module._Cached().sum(bits.numpy(), key) & MASK
    threads = torch.get_num_threads()
    for chunk in (module.CHUNK, 1000, 36_999):
        monkeypatch.setattr(module, "CHUNK", chunk)
        for count in (1, 2):
            torch.set_num_threads(count)
            assert module._sum(bits, key) & MASK == expected
    torch.set_num_threads(threads)
    for chunk in (1 << 9, 1 << 15, 1 << 16):
        monkeypatch.setattr(module, "CACHED_CHUNK", chunk)
        assert module._Cached().sum(bits.numpy(), key) & MASK == expected
