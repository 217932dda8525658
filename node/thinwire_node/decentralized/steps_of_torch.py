"""What the optimizers of this package share: the closure of a step, and parameters and gradients that they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire_proto.errors import ConfigError

Loss = TypeVar("Loss")


def evaluated(closure: Callable[[], Loss] | None) -> Loss | None:
    """The loss that a closure returns, which computes gradients inside a step; None without one."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def refuse_complex(optimizer: Optimizer) -> None:
    """Raises ConfigError, and drops the newest param group, if it has a complex parameter. The square of a complex
    number is no second moment, so steps would be wrong."""
    if any(parameter.is_complex() for parameter in optimizer.param_groups[-1]["params"]):
        optimizer.param_groups.pop()
        raise ConfigError(f"{type(optimizer).__name__} takes no complex parameters; give it torch.view_as_real of them")


def refuse_sparse(optimizer: Optimizer, gradient: Tensor) -> None:
    """Raises ConfigError for a sparse gradient."""
    if gradient.is_sparse:
        raise ConfigError(f"{type(optimizer).__name__} does not take sparse gradients")
