"""What the optimizers of this package share: the closure of a step, and parameters and gradients that they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire.whole_parameters import named, refuse_partial, refuse_replaced
from thinwire_proto.errors import ConfigError

Loss = TypeVar("Loss")


def evaluated(closure: Callable[[], Loss] | None) -> Loss | None:
    """The loss that a closure returns, which computes gradients inside a step; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def check_newest_group(optimizer: Optimizer) -> None:
    """Raises ConfigError, and drops the newest param group, if it has a parameter that is complex or not whole. The
    square of a complex number is no second moment, so steps would be wrong."""
    group, what = optimizer.param_groups[-1], type(optimizer).__name__
    try:
        refuse_partial(what, named(group))
        if any(parameter.is_complex() for parameter in group["params"]):
            raise ConfigError(f"{what} takes no complex parameters; give it torch.view_as_real of them")
    except ConfigError:
        optimizer.param_groups.pop()
        raise


def check_first_step(optimizer: Optimizer) -> None:
    """Raises ConfigError if the model was sharded since the optimizer was created. Does nothing once there is state."""
    if optimizer.state:
        return
    what = type(optimizer).__name__
    for group in optimizer.param_groups:
        refuse_partial(what, named(group))
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if all(parameter.grad is None for parameter in parameters):
        refuse_replaced(what, parameters)


def refuse_sparse(optimizer: Optimizer, gradient: Tensor) -> None:
    """Raises ConfigError for a sparse gradient."""
    if gradient.is_sparse:
        raise ConfigError(f"{type(optimizer).__name__} does not take sparse gradients")
