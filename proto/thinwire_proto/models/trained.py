"""Lists the trained tensors of a module for the contract's manifest."""

from __future__ import annotations

from pydantic import ValidationError
from torch import Tensor, nn

from thinwire_proto.contract import Parameter
from thinwire_proto.errors import ConfigError
from thinwire_proto.running_statistics import refuse_running_statistics


def manifest(model: nn.Module) -> tuple[Parameter, ...]:
    """The manifest of a model, in the module's order: tied tensors once, and none without gradient.

    Raises ConfigError if the model keeps running statistics, or a tensor is too large for a contract."""
    refuse_running_statistics(model)
    try:
        return tuple(Parameter(name=name, shape=tuple(tensor.shape)) for name, tensor in trained(model).items())
    except ValidationError as error:
        raise ConfigError(f"the model does not fit into a contract: {error.errors()[0]['msg']}") from None


def trained(model: nn.Module) -> dict[str, Tensor]:
    """The tensors in the manifest, by name, as views and not copies."""
    return {name: tensor.detach() for name, tensor in model.named_parameters() if tensor.requires_grad}
