"""Public copies of `Gossip` with a codec, and the parameters that they pull before a gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.gossip_ranks import RANKS, run_scenes
from thinwire.gossip.compressed import CompressedCodec
from thinwire.gossip.flat import FlatLayout
from thinwire.gossip.pulled import Pulled
from thinwire_proto.errors import RemoteError
from thinwire_proto.gossip.message import FINGERPRINT_PARTS

SIZE = 300


def exchange(codecs: list[CompressedCodec], layout: FlatLayout, seed: int) -> None:
    x = layout.empty()
    values = layout.values(x)[0]
    values.copy_(torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)))
    own, message = codecs[0].encode(1, x)
    assert torch.equal(codecs[1].decode(0, message), own)


@pytest.mark.parametrize("codec", ["bf16", "int8", "sign"])
def test_a_copy_that_differs_is_found(codec: str) -> None:
    layout = FlatLayout([torch.zeros(SIZE)])
    codecs = [CompressedCodec(layout, codec) for _ in range(2)]
    for seed in range(3):
        exchange(codecs, layout, seed)
    state = codecs[1].state_dict()
    codecs[1].load_state_dict(state)
    exchange(codecs, layout, 3)
    state = codecs[1].state_dict()
    state["theirs"][0][SIZE // 2] += 1e-3
    codecs[1].load_state_dict(state)
    messages = [codecs[0].encode(1, layout.empty())[1] for _ in range(FINGERPRINT_PARTS)]
    with pytest.raises(RemoteError, match="copies of rank 0's parameters differ"):
        [codecs[1].decode(0, message) for message in messages]


PEER = 3
NUMBERS = 5000


def rank(codec: str = "bf16") -> tuple[torch.Tensor, FlatLayout, CompressedCodec]:
    """A rank whose copy of its peer is 1 everywhere, and which itself is at 0."""
    parameter = torch.nn.Parameter(torch.zeros(NUMBERS))
    layout = FlatLayout([parameter])
    here, there = CompressedCodec(layout, codec), CompressedCodec(layout, codec)
    x = layout.empty()
    layout.values(x)[0].fill_(1.0)
    _, message = there.encode(0, x)
    here.decode(PEER, message)
    return parameter, layout, here


def test_parameters_are_pulled_and_are_back_before_a_step() -> None:
    """Half of the way to the peer is the mean of both."""
    parameter, layout, codec = rank()
    pulled = Pulled(layout, codec, 0.4)
    for _ in range(2):
        pulled.begin([])
        torch.testing.assert_close(parameter.data, torch.full((NUMBERS,), 0.2))
        assert pulled.own is not None
        pulled.end()
        assert torch.equal(parameter.data, torch.zeros(NUMBERS))
        assert pulled.own is None


def test_a_peer_that_is_left_out_pulls_nothing() -> None:
    parameter, layout, codec = rank()
    Pulled(layout, codec, 0.4).begin([PEER])
    assert torch.equal(parameter.data, torch.zeros(NUMBERS))


def test_pulled_gradients_move_no_mean_and_resume_to_the_bit(tmp_path: Path) -> None:
    ranks = run_scenes(tmp_path, "support.gossip_pulled")
    for found in ranks:
        equal_runs, between, mean, is_as_before, end = found["pulled"]
        assert equal_runs == [(True, False)] * 2  # and they are not those of a run without it
        assert mean == pytest.approx(1.5, abs=1e-5)  # that of the ranks' own parameters
        assert is_as_before
        assert 0.2 < abs(between - 1.5) / abs(end - 1.5) < 0.8  # between two steps, half of the way to the mean
    assert sum(found["pulled"][-1] for found in ranks) / RANKS == pytest.approx(1.5, abs=1e-5)
