"""Muon as one optimizer of a whole model: matrices take its steps, and all other parameters those of AdamW.

`torch.optim.Muon` takes matrices alone, so a model needs a second optimizer beside it, and an exchange without a centre
follows the steps of one. `thinwire_proto.muon` has the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from thinwire_node.decentralized.accum_adam import refuse_complex
from thinwire_proto.errors import ConfigError
from thinwire_proto.muon import muon_step


class Muon(Optimizer):
    """Muon for training without a centre.

        matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n and "head" not in n]
        others = [p for p in model.parameters() if all(p is not matrix for matrix in matrices)]
        optimizer = Muon([{"params": matrices}, {"params": others, "is_matrices": False}], lr=0.02)

    is_matrices: whether a group takes steps of Muon; embeddings and heads learn better with AdamW. lr: of the matrices;
    steps of others have `adamw_factor` times that. weight_decay: times lr, of all. Raises ConfigError for settings out
    of range, and for tensors that are not matrices in a group of them.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.02,
        momentum: float = 0.9,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adamw_factor: float = 0.2,
        *,
        is_matrices: bool = True,
    ) -> None:
        numbers = {"lr": lr, "weight_decay": weight_decay, "adamw_factor": adamw_factor}
        if eps <= 0 or any(number < 0 for number in numbers.values()):
            raise ConfigError(f"{', '.join(numbers)} must be 0 or more, and eps above 0")
        if not all(0 <= decay < 1 for decay in (momentum, *betas)):
            raise ConfigError("momentum and both betas must be in [0, 1)")
        more = {"momentum": momentum, "betas": betas, "eps": eps, "is_matrices": is_matrices}
        super().__init__(params, numbers | more)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch. Raises ConfigError for complex parameters, and for a group of matrices with others in it."""
        super().add_param_group(param_group)
        refuse_complex(self)
        group = self.param_groups[-1]
        wrong = [tuple(one.shape) for one in group["params"] if group["is_matrices"] and one.dim() != 2]
        if wrong:
            self.param_groups.pop()
            raise ConfigError(
                f"Muon takes matrices, and a parameter has the shape {wrong[0]}: put it into a group of its own with "
                "is_matrices=False"
            )

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if parameter.grad.is_sparse:
                        raise ConfigError("Muon does not take sparse gradients")
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    step = self._muon if group["is_matrices"] else self._adamw
                    step(parameter, parameter.grad, group)
        return loss

    def _muon(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, wide = self.state[parameter], torch.promote_types(parameter.dtype, torch.float32)
        if not state:
            state["momentum"] = torch.zeros_like(parameter, dtype=wide)
        state["momentum"] = state["momentum"].to(wide)  # torch loads a state in the type of its parameter
        step = muon_step(state["momentum"], gradient.to(wide), group["momentum"])  # a norm of float16 overflows
        parameter.sub_(step, alpha=group["lr"])

    def _adamw(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        start1, start2 = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
        root = (state["exp_avg_sq"] / start2).sqrt_().add_(group["eps"])
        parameter.addcdiv_(state["exp_avg"], root, value=-group["lr"] * group["adamw_factor"] / start1)
