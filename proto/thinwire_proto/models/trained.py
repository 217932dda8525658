"""The trained tensors of a module, by which a contract lists them."""

from __future__ import annotations

from torch import Tensor, nn

from thinwire_proto.contract import Parameter


def manifest(model: nn.Module) -> tuple[Parameter, ...]:
    """In the module's own order: tied tensors once, those without gradient not at all."""
    return tuple(Parameter(name=name, shape=tuple(tensor.shape)) for name, tensor in trained(model).items())


def trained(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that `manifest` lists, by name; not copies."""
    return {name: tensor.detach() for name, tensor in model.named_parameters() if tensor.requires_grad}
