"""Forward and backward on some hardware: parameters and a batch in, a loss and gradients out.

`Compute` is the port. `TorchCompute` is one device of this machine; a compute over several cards can stand beside it
and hold the parameters in shards, by tile range (`thinwire_proto.exact.parameters`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from thinwire_node.training.precision import compute_dtype
from thinwire_proto.task import Batch, Stateless, Task

log = logging.getLogger("thinwire.node")

Tensors = Mapping[str, Tensor]
"""By the parameter's name, float32, in its shape."""


class Interrupted(Exception):
    """The batch was given up; nothing of it was kept."""


class Compute(Protocol):
    """One model on some hardware. One thread calls all but `interrupt`."""

    device: torch.device
    """Where gradients lie, and what a local rule keeps of them."""

    @property
    def parameters(self) -> Tensors:
        """What it computes with, on `device`. A local rule may move them in place, if they were given with an
        offset."""

    def use(self, parameters: Tensors, offset: Tensors | None = None) -> None:
        """Compute with these parameters from now on. Without an offset, and if they are on `device`, with the tensors
        themselves, without a copy; else with copies on `device`, to which `offset` is added."""

    def gradients(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss of a batch, and its gradient by the parameter's name. Raises Interrupted."""

    def interrupt(self) -> None:
        """Give up the batch that runs, and any later one: on a slow machine it may have minutes left. May be called
        from any thread."""


class TorchCompute:
    """One torch device. The forward pass may run in bfloat16; parameters and gradients are float32."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self.device = device
        self._dtype = compute_dtype(device)
        self._model = Stateless(task.model(device))
        self._parameters: dict[str, Tensor] = {}
        self._copies: dict[str, Tensor] | None = None  # only where the parameters are moved, or lie elsewhere
        self._is_interrupted = threading.Event()
        for stage in self._model.model.stages():
            stage.register_forward_hook(self._after_stage)

    @property
    def parameters(self) -> Tensors:
        return self._parameters

    @torch.no_grad()
    def use(self, parameters: Tensors, offset: Tensors | None = None) -> None:
        if offset is None and all(tensor.device == self.device for tensor in parameters.values()):
            self._copies = None
            self._parameters = {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
            return
        if self._copies is None:
            empty = {name: torch.empty_like(tensor, device=self.device) for name, tensor in parameters.items()}
            self._parameters = self._copies = {name: tensor.requires_grad_() for name, tensor in empty.items()}
        for name, copied in self._copies.items():
            copied.copy_(parameters[name])
            if offset is not None:
                copied.add_(offset[name])

    def gradients(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        here = tuple(tensor.to(self.device) for tensor in batch)
        with torch.autocast(self.device.type, self._dtype, enabled=self._dtype != torch.float32):
            loss = self._model.loss(self._parameters, here)
        found = torch.autograd.grad(loss, list(self._parameters.values()))
        return loss.detach(), dict(zip(self._parameters, found, strict=True))

    def interrupt(self) -> None:
        self._is_interrupted.set()

    def _after_stage(self, stage: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        """Runs after each stage, in forward and in backward."""
        self._check_interrupted()
        first = output[0] if isinstance(output, tuple | list) else output
        if isinstance(first, Tensor) and first.requires_grad:
            first.register_hook(lambda gradient: self._check_interrupted())  # type: ignore[no-untyped-call]

    def _check_interrupted(self) -> None:
        if self._is_interrupted.is_set():
            raise Interrupted
