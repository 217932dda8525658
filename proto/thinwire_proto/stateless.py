"""Computes with a model on parameters that are passed to each call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from thinwire_proto.running_statistics import refuse_running_statistics
from thinwire_proto.task import Batch, LearnsConversations, Model, WritesOn


class Stateless:
    """A model without trained parameters of its own. Each call computes with the tensors that it is given, without
    copies. Frozen parameters and buffers stay in the model. Dropout acts only where gradients are recorded.

    Raises ConfigError if the model keeps running statistics.
    """

    def __init__(self, model: Model) -> None:
        refuse_running_statistics(model)
        self.model = model
        self._caller = _Caller(model)
        name_of = {id(tensor): name for name, tensor in model.named_parameters()}
        self._places = [
            (place, name_of[id(tensor)])
            for place, tensor in self._caller.named_parameters(remove_duplicate=False)
            if id(tensor) in name_of
        ]
        _give_up_memory(model)

    def loss(self, parameters: Mapping[str, Tensor], batch: Batch) -> Tensor:
        found: Tensor = self._call(parameters, "loss", *batch)
        return found

    def weight(self, batch: Batch) -> int:
        """The weight of a batch's mean loss beside that of another: its samples, of conversations the tokens that
        count, or of preferences the pairs."""
        return self.model.weight(*batch) if isinstance(self.model, LearnsConversations) else len(batch[0])

    def margins(self, parameters: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """See `LearnsPreferences`."""
        found: Tensor = self._call(parameters, "margins", *batch)
        return found

    def next_logits(self, parameters: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
        """See `Writes`."""
        found: Tensor = self._call(parameters, "next_logits", tokens)
        return found

    def continued_logits(self, parameters: Mapping[str, Tensor], tokens: Tensor, cache: Any) -> tuple[Tensor, Any]:
        """See `WritesOn`. Another model that writes computes everything again."""
        if not isinstance(self.model, WritesOn):
            return self.next_logits(parameters, tokens), None
        logits, cache = self._call(parameters, "continued_logits", tokens, cache)
        return logits, cache

    def _call(self, parameters: Mapping[str, Tensor], method: str, *arguments: object) -> Any:
        if self._caller.training != torch.is_grad_enabled():
            self._caller.train(torch.is_grad_enabled())
        named = {place: parameters[name] for place, name in self._places if name in parameters}
        # all places of tied parameters are above; a search in each call takes a hundredth of a small model's pass
        return torch.func.functional_call(self._caller, named, (method, *arguments), tie_weights=False)


class _Caller(nn.Module):
    """Calls any method of a model through `forward`, because `functional_call` can only call that."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, method: str, *arguments: object) -> Any:
        return getattr(self.model, method)(*arguments)


def _give_up_memory(model: Model) -> None:
    """Replace a model's trained parameters by tensors without memory. Tied parameters stay tied, frozen ones stay."""
    without: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not parameter.requires_grad:
                continue
            empty = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
            setattr(module, name, without.setdefault(parameter, empty))
