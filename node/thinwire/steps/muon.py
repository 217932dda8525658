"""Muon as one optimizer of a whole model: matrices take its steps, and embeddings, heads and all else those of AdamW.

`torch.optim.Muon` takes matrices alone, so a model needs a second optimizer beside it, and a gossip exchange
follows the steps of one. `thinwire_proto.muon` has the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from thinwire.steps.steps_of_torch import WholeParameterOptimizer, refuse_sparse
from thinwire_proto.errors import ConfigError
from thinwire_proto.muon import muon_step

ParamGroup = dict[str, Any]


def muon_groups(model: nn.Module, adamw_for: Iterable[str] = ()) -> list[ParamGroup]:
    """The trained parameters of a model in groups for `Muon`.

    These take steps of AdamW: whatever is not a matrix; the weights of embedding modules, also where another module
    shares them; and a matrix whose rows are as many as those of the largest embedding, if there is only one, since it
    is the head. The head of a model without embeddings cannot be told from other matrices.

    adamw_for: names of modules or parameters that take steps of AdamW too, as `named_parameters` and `named_modules`
    spell them. Raises ConfigError if the model has none of such a name."""
    if not isinstance(model, nn.Module):
        raise ConfigError(f"muon_groups takes a model, because it looks for embeddings; this is {type(model).__name__}")
    if isinstance(adamw_for, str):
        raise ConfigError(f"adamw_for takes names, for example [{adamw_for!r}]")
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    others = _embeddings_and_head(model, trained) | _named(model, adamw_for)
    return grouped((one, one.dim() == 2 and one not in others) for one in trained)


def grouped(parameters: Iterable[tuple[Tensor, bool]]) -> list[ParamGroup]:
    """Parameters in groups by whether they take steps of Muon."""
    groups = {wanted: ParamGroup(params=[], is_matrices=wanted) for wanted in (True, False)}
    for parameter, is_matrix in parameters:
        groups[is_matrix]["params"].append(parameter)
    return [group for group in groups.values() if group["params"]]


def _embeddings_and_head(model: nn.Module, trained: Sequence[Tensor]) -> set[Tensor]:
    embeddings = {one.weight for one in model.modules() if isinstance(one, nn.Embedding | nn.EmbeddingBag)}
    rows = max((len(one) for one in embeddings), default=0)
    heads = [one for one in trained if one.dim() == 2 and len(one) == rows and one not in embeddings]
    return embeddings | (set(heads) if len(heads) == 1 else set())


def _named(model: nn.Module, names: Iterable[str]) -> set[Tensor]:
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters(remove_duplicate=False))
    found: set[Tensor] = set()
    for name in names:
        if name not in modules and name not in parameters:
            raise ConfigError(f"adamw_for: the model has no module or parameter {name!r}")
        found |= {parameters[name]} if name in parameters else set(modules[name].parameters())
    return found


class Muon(WholeParameterOptimizer):
    """Muon for training by gossip.

        optimizer = Muon(muon_groups(model), lr=0.015)

    is_matrices: whether a group takes steps of Muon. lr: of the matrices; steps of others have `adamw_rate` times that.
    weight_decay: times lr, of all. Raises ConfigError for settings out of range, and for tensors that are not matrices
    in a group of them."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.015,
        momentum: float = 0.9,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        adamw_rate: float = 0.2,
        *,
        is_matrices: bool = True,
    ) -> None:
        numbers = {"lr": lr, "weight_decay": weight_decay, "adamw_rate": adamw_rate}
        more = {"momentum": momentum, "betas": betas, "eps": eps, "is_matrices": is_matrices}
        super().__init__(params, numbers | more)

    def _check_group(self, group: ParamGroup) -> None:
        if not (group["eps"] > 0 and all(group[name] >= 0 for name in ("lr", "weight_decay", "adamw_rate"))):
            raise ConfigError("lr, weight_decay and adamw_rate must be 0 or more, and eps above 0")
        if not all(0 <= decay < 1 for decay in (group["momentum"], *group["betas"])):
            raise ConfigError("momentum and both betas must be in [0, 1)")
        wrong = [tuple(one.shape) for one in group["params"] if group["is_matrices"] and one.dim() != 2]
        if wrong:
            raise ConfigError(
                f"Muon takes matrices, and a parameter has the shape {wrong[0]}: put it into a group of its own with "
                "is_matrices=False, as muon_groups does"
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch. Raises ConfigError for the state of another optimizer, or of other groups."""
        saved = state_dict["param_groups"]
        for ours, theirs in zip(self.param_groups, saved, strict=False):  # torch refuses another number of groups
            if theirs.get("is_matrices") != ours["is_matrices"]:
                raise ConfigError(
                    "the state is of another optimizer, or its groups are not those of this one: "
                    f"is_matrices is {ours['is_matrices']} here, and {theirs.get('is_matrices', 'missing')} there"
                )
        super().load_state_dict(state_dict)
        # torch has rounded the momentum to the type of its parameter
        numbers = (at for group in saved for at in group["params"])
        for number, parameter in zip(numbers, self._parameters(), strict=True):
            if "momentum" in (kept := state_dict["state"].get(number, {})):
                self.state[parameter]["momentum"] = kept["momentum"].to(parameter.device, copy=True)

    def _step(self) -> None:
        for group in self.param_groups:
            step = self._muon if group["is_matrices"] else self._adamw
            for parameter in group["params"]:
                if parameter.grad is not None:
                    refuse_sparse(self, parameter.grad)
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    step(parameter, parameter.grad, group)

    def _state_of(self, parameter: Tensor, group: ParamGroup) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state and group["is_matrices"]:
            # float32 at least, since a norm of float16 overflows
            wide = torch.promote_types(parameter.dtype, torch.float32)
            state["momentum"] = torch.zeros_like(parameter, dtype=wide)
        elif not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state

    def _muon(self, parameter: Tensor, gradient: Tensor, group: ParamGroup) -> None:
        momentum = self._state_of(parameter, group)["momentum"]
        step = muon_step(momentum, gradient.to(momentum.dtype), group["momentum"])
        parameter.sub_(step, alpha=group["lr"])

    def _adamw(self, parameter: Tensor, gradient: Tensor, group: ParamGroup) -> None:
        state = self._state_of(parameter, group)
        beta1, beta2 = group["betas"]
        adamw(
            *([parameter], [gradient], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]]),
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"] * group["adamw_rate"],
            weight_decay=0.0,  # applied already, at the whole rate
            eps=group["eps"],
            maximize=False,
        )
