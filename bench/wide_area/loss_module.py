"""The model of the workload, with its loss as the output."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.wide_area.workload import PRESET, SEED
from thinwire_proto.models import BYTE_PRESETS, build_decoder


class LossModule(nn.Module):
    """The model with the loss as its output, because wrappers such as DDP attach their hooks to a forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.decoder = build_decoder(BYTE_PRESETS[PRESET])
        self.decoder.initialise(torch.Generator().manual_seed(SEED))

    def forward(self, tokens: Tensor) -> Tensor:
        """The mean loss of these samples, int64 [samples, context + 1], in nats a token."""
        return self.decoder.loss(tokens)
