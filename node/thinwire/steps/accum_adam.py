"""AccumAdam and AccumAdamW: Adam that steps in each iteration, and commits its moments once in a window.

The problem: ranks that mix step by their own small batches. The second moment of a small batch is mostly noise, and a
step for every s batches only would mix s times less often per sample. The sketch (Wang et al., From promise to
practice, arXiv 2410.11998): step in each iteration by moments that hold the gradient once, without keeping them; after
s iterations, keep the moments with the window's mean gradient in place of the last one.

The arithmetic is that of the published code. There a committed moment is multiplied by β at the end of its window and
not at the beginning of the next one: with ḡ the mean gradient of the window,

    step      m̃ = m + (1 − β₁)·g       ṽ = v + (1 − β₂)·g²
    commit    m ← β₁·(m + (1 − β₁)·ḡ)   v ← β₂·(v + (1 − β₂)·ḡ²)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from thinwire.steps.steps_of_torch import WholeParameterOptimizer, refuse_sparse
from thinwire_proto.errors import ConfigError

STATE = ("exp_avg", "exp_avg_sq", "accum_grad")


class AccumAdam(WholeParameterOptimizer):
    """Adam with windows; see the module. Weight decay adds to the gradient, as in Adam.

    accum_iter: s, iterations of a window. A parameter without a gradient is left out of an iteration. Raises
    ConfigError for settings that cannot be."""

    _decoupled = False

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        accum_iter: int = 4,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "accum_iter": accum_iter}
        super().__init__(params, defaults)

    def _check_group(self, group: dict[str, Any]) -> None:
        accum_iter, betas = group["accum_iter"], group["betas"]
        lr, eps, weight_decay = group["lr"], group["eps"], group["weight_decay"]
        if not (isinstance(accum_iter, int) and accum_iter >= 1):
            raise ConfigError(f"accum_iter must be a whole number, 1 or more; it is {accum_iter!r}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ConfigError(f"betas must be 0 or more, and less than 1; they are {betas}")
        if not (lr >= 0 and eps >= 0 and weight_decay >= 0):
            raise ConfigError(f"lr, eps and weight_decay must be 0 or more; they are {lr}, {eps} and {weight_decay}")

    def _state_of(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.int64)
            state |= {name: torch.zeros_like(parameter) for name in STATE}
        return state

    def _step(self) -> None:
        for group in self.param_groups:
            for step, parameters in self._alike(group):
                self._step_alike(group, step, parameters)

    def _alike(self, group: dict[str, Any]) -> Iterator[tuple[int, list[Tensor]]]:
        """The parameters of a group that have a gradient, by the number of this step, dtype and device."""
        found: dict[tuple[int, torch.dtype, torch.device], list[Tensor]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            refuse_sparse(self, parameter.grad)
            state = self._state_of(parameter, group)
            state["step"] += 1
            found[int(state["step"]), parameter.dtype, parameter.device].append(parameter)
        for (step, _, _), parameters in found.items():
            yield step, parameters

    def _step_alike(self, group: dict[str, Any], step: int, parameters: list[Tensor]) -> None:
        rate, eps, decay, window = float(group["lr"]), group["eps"], group["weight_decay"], group["accum_iter"]
        beta1, beta2 = group["betas"]
        first, second, mean = ([self.state[parameter][name] for parameter in parameters] for name in STATE)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        if decay and self._decoupled:
            torch._foreach_mul_(parameters, 1 - rate * decay)
        elif decay:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=decay))
        torch._foreach_add_(mean, gradients, alpha=1 / window)

        windows = -(-step // window)  # this one included
        momentum = torch._foreach_add(first, gradients, alpha=1 - beta1)  # m̃
        root = torch._foreach_addcmul(second, gradients, gradients, value=1 - beta2)  # ṽ
        torch._foreach_sqrt_(root)
        torch._foreach_div_(root, math.sqrt(1 - beta2**windows))
        torch._foreach_add_(root, eps)
        torch._foreach_addcdiv_(parameters, momentum, root, value=-rate / (1 - beta1**windows))

        if step % window == 0:
            torch._foreach_add_(first, mean, alpha=1 - beta1)
            torch._foreach_mul_(first, beta1)
            torch._foreach_addcmul_(second, mean, mean, value=1 - beta2)
            torch._foreach_mul_(second, beta2)
            torch._foreach_zero_(mean)


class AccumAdamW(AccumAdam):
    """AccumAdam with decoupled weight decay, as in AdamW."""

    _decoupled = True
