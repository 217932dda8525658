"""Every number of the difference, as float32 or rounded to bfloat16."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.apply import flush_subnormals
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.gossip.codec import STEP_MAX, Bytes, Codec, check_length, is_bounded, register_codec


@register_codec("dense")
class DenseCodec(Codec):
    """4 bytes a parameter, float32, little-endian."""

    def __init__(self, layout: TileLayout) -> None:
        super().__init__(layout)
        self.bytes_max = 1 + 4 * layout.parameters

    def _encode(self, difference: Tensor) -> Sequence[Bytes]:
        return [difference.cpu().contiguous().numpy().astype("<f4", copy=False).view(np.uint8).data]

    def _decode(self, body: memoryview, device: torch.device) -> Tensor:
        check_length(body, self.bytes_max - 1)
        return _checked(torch.from_numpy(np.frombuffer(body, "<f4").astype(np.float32)).to(device))


@register_codec("bf16")
class Bfloat16Codec(Codec):
    """2 bytes a parameter: the upper halves of float32, rounded to nearest, little-endian."""

    def __init__(self, layout: TileLayout) -> None:
        super().__init__(layout)
        self.bytes_max = 1 + 2 * layout.parameters

    def _encode(self, difference: Tensor) -> Sequence[Bytes]:
        upper = difference.to(torch.bfloat16).view(torch.int16).cpu().numpy()
        return [upper.astype("<i2", copy=False).view(np.uint8).data]

    def _decode(self, body: memoryview, device: torch.device) -> Tensor:
        check_length(body, self.bytes_max - 1)
        upper = torch.from_numpy(np.frombuffer(body, "<i2").astype(np.int16)).to(device)
        return _checked(upper.view(torch.bfloat16).to(torch.float32))


def _checked(step: Tensor) -> Tensor:
    """The step, with 0 for subnormal numbers, which machines treat differently."""
    if not is_bounded(step):
        raise PayloadError(f"a number of the difference is not finite, or larger than {STEP_MAX:g}")
    flush_subnormals(step)
    return step
