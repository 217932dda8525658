"""The base of the optimizers for gossip: the closure of a step, and parameters and gradients that they refuse."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

from thinwire.placement import named, refuse_partial, refuse_replaced
from thinwire.script import only_asks_for_state
from thinwire_proto.errors import ConfigError


class WholeParameterOptimizer(Optimizer):
    """An optimizer of dense gradients and of parameters that this rank holds whole."""

    @abstractmethod
    def _state_of(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        """The state of a parameter, made at its first use."""

    @abstractmethod
    def _step(self) -> None:
        """Step the parameters that have a gradient."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch. Raises ConfigError, and adds nothing, for a parameter that is complex or not whole. The square
        of a complex number is no second moment, so steps would be wrong."""
        super().add_param_group(param_group)
        group, what = self.param_groups[-1], type(self).__name__
        try:
            refuse_partial(what, named(group))
            if any(parameter.is_complex() for parameter in group["params"]):
                raise ConfigError(f"{what} takes no complex parameters; give it torch.view_as_real of them")
            self._check_group(group)
        except ConfigError:
            self.param_groups.pop()
            raise

    def _check_group(self, group: dict[str, Any]) -> None:
        """Raise ConfigError if a group does not suit this optimizer."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch. Raises ConfigError for the state of another optimizer."""
        missing = sorted({name for group in state_dict["param_groups"] for name in self.defaults.keys() - group.keys()})
        if missing:
            raise ConfigError(
                f"the state is of another optimizer: its groups have no {', '.join(missing)}, as those of "
                f"{type(self).__name__} have"
            )
        super().load_state_dict(state_dict)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step. closure: recomputes the loss and returns it."""
        if only_asks_for_state(self):
            for group in self.param_groups:
                for parameter in group["params"]:
                    self._state_of(parameter, group)
            return None
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self.state:
            self._check_first_step()
        self._step()
        return loss

    def _check_first_step(self) -> None:
        """Raise ConfigError if the model was sharded since the optimizer was created."""
        what, parameters = type(self).__name__, self._parameters()
        for group in self.param_groups:
            refuse_partial(what, named(group))
        if all(parameter.grad is None for parameter in parameters):
            refuse_replaced(what, parameters)

    def _parameters(self) -> list[Tensor]:
        return [parameter for group in self.param_groups for parameter in group["params"]]


def refuse_sparse(optimizer: Optimizer, gradient: Tensor) -> None:
    """Raises ConfigError for a sparse gradient."""
    if gradient.is_sparse:
        raise ConfigError(f"{type(optimizer).__name__} does not take sparse gradients")
