"""The base of this package's tasks: the trained tensors of a module are the contract's manifest."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Generic, TypeVar

from pydantic import ValidationError
from torch import Tensor, nn

from thinwire_proto.contract import ModelSpec, Parameter
from thinwire_proto.errors import ConfigError
from thinwire_proto.running_statistics import refuse_running_statistics
from thinwire_proto.task import Task

Spec = TypeVar("Spec", bound=ModelSpec)


class SpecTask(Task, Generic[Spec]):
    """A task that follows from a spec. Its manifest is that of its model."""

    def __init__(self, spec: Spec) -> None:
        self._spec = spec

    def manifest(self) -> tuple[Parameter, ...]:
        return _manifest_of(type(self), self._spec)


@lru_cache(maxsize=32)
def _manifest_of(task: type[SpecTask[Any]], spec: ModelSpec) -> tuple[Parameter, ...]:
    model: Any = task(spec).model("meta")
    return manifest(model)


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
