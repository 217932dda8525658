"""Activation checkpoints (arXiv 1604.06174).

A stage of the model keeps its inputs alone, and is computed again when the backward pass comes to it. That costs about
a third more time, and takes the memory of one stage in place of all.

Not `torch.utils.checkpoint`, which loads torch's compiler, 155 MB, when memory is short. And it computes a stage again
with the parameters that its modules have then; those of a `Stateless` model are there in the forward pass alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.checkpoint import get_device_states, set_device_states

Tensors = Mapping[str, Tensor]
NONE: Tensors = {}
_TENSOR = object()
"""Stands for a tensor among arguments."""


class PlainStage(nn.Module):
    """A stage as it was before `checkpoint_stage`, with its parameters below the name `stage`."""

    def __init__(self, stage: nn.Module) -> None:
        super().__init__()
        self.stage = stage
        self._forward = stage.forward

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self._forward(*arguments, **named)


class StageCall:
    """A call of a stage, without the tensors among its arguments, and what else it depends on: the precision and the
    random numbers."""

    def __init__(self, again: PlainStage, own: Mapping[str, Tensor], arguments: Any, named: Any) -> None:
        """own: the stage's parameters, by the names of `again`; those that are not among them are given later."""
        leaves, self._spec = tree_flatten((own, arguments, named))
        self.tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        """To be dropped by whoever has saved them."""
        self._rest = [_TENSOR if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        self._again = again
        kind = self.tensors[0].device.type
        self._precision = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        self._random = torch.get_rng_state()
        self._devices, self._random_of_devices = get_device_states(*self.tensors)

    def outputs(self, tensors: Iterable[Tensor], own: Tensors = NONE) -> Any:
        """own: the parameters that the call was made without."""
        left = iter(tensors)
        leaves = [next(left) if leaf is _TENSOR else leaf for leaf in self._rest]
        known, arguments, named = tree_unflatten(leaves, self._spec)
        return functional_call(self._again, {**known, **own}, arguments, named)

    def outputs_again(self, tensors: Iterable[Tensor], own: Tensors = NONE) -> Any:
        """The stage's outputs again, with gradients."""
        kind, dtype, is_enabled = self._precision
        with torch.random.fork_rng(self._devices), torch.autocast(kind, dtype, is_enabled), torch.enable_grad():
            torch.set_rng_state(self._random)
            if self._devices:
                set_device_states(self._devices, self._random_of_devices)
            return self.outputs(tensors, own)


class _Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: StageCall, *tensors: Tensor) -> Any:
        ctx.call = call
        ctx.save_for_backward(*tensors)
        return call.outputs(tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        inputs = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in ctx.saved_tensors]
        found = ctx.call.outputs_again(inputs)
        outputs = found if isinstance(found, tuple) else (found,)
        known = [(of, by) for of, by in zip(outputs, gradients, strict=True) if by is not None and of.requires_grad]
        wanted = [tensor for tensor in inputs if tensor.requires_grad]
        results = iter(torch.autograd.grad([of for of, _ in known], wanted, [by for _, by in known], allow_unused=True))
        return None, *(next(results) if tensor.requires_grad else None for tensor in inputs)


def checkpoint_stage(stage: nn.Module, is_wanted: Callable[[], bool]) -> None:
    """Let a stage checkpoint from now on, in passes with gradients, while `is_wanted`."""
    plain, again = stage.forward, PlainStage(stage)

    def forward(*arguments: Any, **named: Any) -> Any:
        if not (is_wanted() and torch.is_grad_enabled()):
            return plain(*arguments, **named)
        own = {f"stage.{name}": tensor for name, tensor in stage.named_parameters()}
        call = StageCall(again, own, arguments, named)
        tensors, call.tensors = call.tensors, []
        return _Checkpoint.apply(call, *tensors)  # type: ignore[no-untyped-call]

    stage.forward = forward
