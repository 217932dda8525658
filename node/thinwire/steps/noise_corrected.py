"""AdamW whose second moment is that of a gradient averaged over all nodes, estimated on one node.

The problem: in a gossip run, a node steps on its own gradient, which is noisier than the mean of n nodes. Adam divides
by √v, and v has the noise in it: E[g²] = μ² + σ². So the steps are too small where noise is large, though mixing would
average the noise away.

The sketch: the two halves of a local batch have independent noise. With g₁ and g₂ their gradients and g the mean, g₁·g₂
estimates μ², and (g₁ − g₂)²/4 the variance σ² of g. So

    v ← β₂·v + (1 − β₂)·(g₁·g₂ + (g₁ − g₂)²/4n)

is the second moment of a mean over n nodes. One pair may give a negative estimate, so v has the floor EMA[g²]/n. The
moving averages are corrected for their start as in Adam. The first moment, and decoupled weight decay, are AdamW's
(arXiv 1711.05101).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from thinwire.steps.steps_of_torch import WholeParameterOptimizer, refuse_sparse
from thinwire_proto.errors import ConfigError, LocalError


class NoiseCorrectedAdamW(WholeParameterOptimizer):
    """AdamW for training by gossip. nodes: n.

        (loss_of(first_half) / 2).backward()
        optimizer.keep_half()
        (loss_of(second_half) / 2).backward()
        optimizer.step()

    The gradients of both halves add up in `.grad`, as in gradient accumulation; they may be clipped before `step` by a
    factor that is the same for all parameters, if `keep_half` is called after the second half too. A closure may call
    `keep_half` itself. Without it, `step` raises LocalError. Raises ConfigError for settings out of range."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        nodes: int,
    ) -> None:
        self._halves: list[dict[Tensor, Tensor]] = []
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "nodes": nodes})

    def _check_group(self, group: dict[str, Any]) -> None:
        is_in_range = group["lr"] >= 0 and group["eps"] > 0 and group["weight_decay"] >= 0
        if not (is_in_range and all(0 <= beta < 1 for beta in group["betas"])):
            raise ConfigError("lr and weight_decay must be 0 or more, eps above 0, and both betas in [0, 1)")
        if group["nodes"] < 1:
            raise ConfigError(f"nodes must be at least 1; it is {group['nodes']}")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy, or of one that was pickled: no half is kept."""
        super().__setstate__(state)
        self._halves = []

    @torch.no_grad()
    def keep_half(self) -> None:
        """Remember the gradients of the half that was just computed."""
        if len(self._halves) == 2:
            raise LocalError(
                "keep_half was called for two halves already; step comes next, or optimizer.zero_grad() where a "
                "GradScaler has skipped the step"
            )
        whole = {parameter: parameter.grad.clone() for parameter in self._parameters() if parameter.grad is not None}
        for earlier in self._halves:
            for parameter, gradient in earlier.items():
                whole[parameter] -= gradient
        self._halves.append(whole)

    def _step(self) -> None:
        if not self._halves:
            raise LocalError("call keep_half() between the backward passes of the two halves of the batch")
        factor = self._clipped_by() if len(self._halves) == 2 else 1.0
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    refuse_sparse(self, parameter.grad)
                    first = self._halves[0].get(parameter)
                    first = torch.zeros_like(parameter) if first is None else first * factor
                    self._step_one(parameter, parameter.grad, first, group)
        self._halves.clear()

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        self._halves.clear()

    def _state_of(self, parameter: Tensor, group: dict[str, Any]) -> dict[str, Any]:
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = 0
            for name in ("exp_avg", "exp_avg_sq", "corrected_sq"):
                state[name] = torch.zeros_like(parameter)
        return state

    def _clipped_by(self) -> float:
        """The factor by which gradients were changed since the second half was kept."""
        before = after = 0.0
        for parameter, second in self._halves[1].items():
            first = self._halves[0].get(parameter)
            before += float((second if first is None else first + second).double().square().sum())
            assert parameter.grad is not None, "it had a gradient when the half was kept"
            after += float(parameter.grad.double().square().sum())
        return (after / before) ** 0.5 if before else 1.0

    def _step_one(self, parameter: Tensor, gradient: Tensor, first: Tensor, group: dict[str, Any]) -> None:
        """gradient: the mean g of both halves. first: g₁/2, since each loss was divided by 2."""
        state = self._state_of(parameter, group)
        state["step"] += 1
        (beta1, beta2), nodes = group["betas"], group["nodes"]
        one, other = 2 * first, 2 * (gradient - first)
        state["exp_avg"].lerp_(gradient, 1 - beta1)
        state["exp_avg_sq"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        noise = (one - other).square_().div_(4 * nodes)
        state["corrected_sq"].mul_(beta2).add_(noise.addcmul_(one, other), alpha=1 - beta2)
        v = torch.maximum(state["corrected_sq"], state["exp_avg_sq"] / nodes)
        start1, start2 = 1 - beta1 ** state["step"], 1 - beta2 ** state["step"]
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(state["exp_avg"], v.div_(start2).sqrt_().add_(group["eps"]), value=-group["lr"] / start1)
