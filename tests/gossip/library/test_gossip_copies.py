"""Public copies of `Gossip` with a codec."""

from __future__ import annotations

import pytest
import torch

from thinwire.gossip.compressed import CompressedCodec
from thinwire.gossip.flat import FlatLayout
from thinwire_proto.errors import RemoteError
from thinwire_proto.gossip.public_copy import FINGERPRINT_PARTS

SIZE = 300


def exchange(codecs: list[CompressedCodec], layout: FlatLayout, seed: int) -> None:
    x = layout.empty()
    values = layout.values(x)[0]
    values.copy_(torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)))
    own, message = codecs[0].encode(1, x)
    assert torch.equal(codecs[1].decode(0, message), own)


@pytest.mark.parametrize("codec", ["bf16", "int8", "sign", "topk:8"])
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
