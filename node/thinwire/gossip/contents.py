"""What a model has: the parameters that are mixed, and what all ranks must have alike."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from thinwire_proto.errors import ConfigError


def trained(model: nn.Module, optimizer: Optimizer) -> list[tuple[str, Tensor]]:
    """The parameters to mix, by name; tied ones once. Raises ConfigError for one that is not the model's."""
    named = {id(parameter): (name, parameter) for name, parameter in reversed(list(model.named_parameters()))}
    stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(id(parameter) not in named for parameter in stepped):
        raise ConfigError(
            "the optimizer has parameters that are not the model's; give Gossip one module that has all of them"
        )
    chosen = {id(parameter) for parameter in stepped if parameter.requires_grad and parameter.numel()}
    if not chosen:
        raise ConfigError("the optimizer has no parameter to train")
    return [(name, parameter) for name, parameter in model.named_parameters() if id(parameter) in chosen]


def described(model: nn.Module, parameters: Sequence[tuple[str, Tensor]]) -> dict[str, str]:
    """The settings that all ranks must share, with names for errors."""
    mixed = {name for name, _ in parameters}
    found = {
        f"parameter {name}": f"{list(tensor.shape)} {tensor.dtype}{'' if name in mixed else ', frozen'}"
        for name, tensor in model.named_parameters()
    }
    return found | {f"buffer {name}": f"{list(tensor.shape)} {tensor.dtype}" for name, tensor in model.named_buffers()}


def checksum(tensors: Sequence[Tensor]) -> int:
    """Differs if a bit of the tensors differs."""
    found = 0
    for tensor in tensors:
        found = zlib.crc32(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data, found)
    return found
