"""Computes the loss and the gradients of a batch.

`Compute` is the port. `TorchCompute` implements it for one device of this machine. Another implementation could use
several cards and hold the parameters in shards by tile range (`thinwire_proto.exact.parameters`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from thinwire_node.training.precision import compute_dtype, full_float32
from thinwire_proto.blobs import Blobs
from thinwire_proto.task import NO_BLOBS, Batch, Model, Stateless, Task

log = logging.getLogger("thinwire.node")

Tensors = Mapping[str, Tensor]
"""Tensors by parameter name, float32, in the parameter's shape."""


class Interrupted(Exception):
    """The batch was aborted. Nothing of it was kept."""


class Compute(Protocol):
    """One model on some hardware. One thread calls every method except `interrupt`."""

    device: torch.device
    """The device of the gradients and of a local rule's tensors."""

    @property
    def parameters(self) -> Tensors:
        """The current parameters, on `device`. If they were given with an offset, a local rule may change them in
        place."""

    def use(self, parameters: Tensors, offset: Tensors | None = None) -> None:
        """Compute with these parameters from now on.

        Uses the tensors themselves if they are on `device` and there is no offset. Otherwise makes copies on `device`
        and adds `offset` to them."""

    def gradients(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the mean loss of a batch and its gradient by parameter name. The tensors are the caller's until the
        next call. Raises Interrupted."""

    def loss(self, parameters: Tensors, batch: Batch) -> float:
        """Compute the mean loss of a batch with these parameters, in float32 and without a gradient. Does not change
        what `use` set. Raises Interrupted."""

    def interrupt(self) -> None:
        """Abort the running batch and every later one, since a batch takes minutes on a slow machine. May be called
        from any thread."""


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Turn off what a model does only in training, such as dropout."""
    modules = [module for module in model.modules() if module.training]
    for module in modules:
        module.training = False
    try:
        yield
    finally:
        for module in modules:
            module.training = True


class TorchCompute:
    """Computes on one torch device. The forward pass may use bfloat16; parameters and gradients are float32."""

    def __init__(self, task: Task, device: torch.device, blobs: Blobs = NO_BLOBS) -> None:
        self.device = device
        self._dtype = compute_dtype(device)
        self._model = Stateless(task.model(device, blobs))
        self._parameters: dict[str, Tensor] = {}
        self._copies: dict[str, Tensor] | None = None  # None while `_parameters` are the caller's own tensors
        self._received = _Received() if device.type == "cpu" else None
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
            self._receive_gradients()
            return
        if self._copies is None:
            empty = {name: torch.empty_like(tensor, device=self.device) for name, tensor in parameters.items()}
            self._parameters = self._copies = {name: tensor.requires_grad_() for name, tensor in empty.items()}
            self._receive_gradients()
        for name, copied in self._copies.items():
            copied.copy_(parameters[name])
            if offset is not None:
                copied.add_(offset[name])

    def gradients(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        here = tuple(tensor.to(self.device) for tensor in batch)
        with torch.autocast(self.device.type, self._dtype, enabled=self._dtype != torch.float32):
            loss = self._model.loss(self._parameters, here)
        # a parameter that this loss does not use gets zeros, such as an expert that no token went to
        if self._received is not None:
            return loss.detach(), self._received.backward(loss, self._parameters)
        found = torch.autograd.grad(loss, list(self._parameters.values()), allow_unused=True, materialize_grads=True)
        return loss.detach(), dict(zip(self._parameters, found, strict=True))

    @torch.no_grad()
    def loss(self, parameters: Tensors, batch: Batch) -> float:
        self._check_interrupted()
        here = tuple(tensor.to(self.device) for tensor in batch)
        placed = {name: tensor.to(self.device) for name, tensor in parameters.items()}
        with full_float32(), evaluating(self._model.model):
            return float(self._model.loss(placed, here))

    def _receive_gradients(self) -> None:
        if self._received is not None:
            self._received.attach(self._parameters)

    def interrupt(self) -> None:
        self._is_interrupted.set()

    def _after_stage(self, stage: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        """Check for an interrupt after each stage, in the forward and the backward pass."""
        self._check_interrupted()
        first = output[0] if isinstance(output, tuple | list) else output
        if isinstance(first, Tensor) and first.requires_grad:
            first.register_hook(lambda gradient: self._check_interrupted())  # type: ignore[no-untyped-call]

    def _check_interrupted(self) -> None:
        if self._is_interrupted.is_set():
            raise Interrupted


class _Received:
    """Receives gradients in memory that is used again for each batch.

    Large new tensors are slow on a CPU: the system clears each of their pages. `torch.autograd.grad` keeps all new
    gradients until its end. Here each is copied as soon as it is there, and its memory serves the next ones.
    """

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}
        self._seen: set[str] = set()

    def attach(self, parameters: Tensors) -> None:
        """Receive the gradients of these leaves from now on."""
        for name, parameter in parameters.items():
            parameter.register_post_accumulate_grad_hook(partial(self._take, name))  # type: ignore[no-untyped-call]

    def _take(self, name: str, parameter: Tensor) -> None:
        gradient, parameter.grad = parameter.grad, None
        assert gradient is not None
        if name not in self._kept:
            self._kept[name] = torch.empty_like(parameter, requires_grad=False)
        self._kept[name].copy_(gradient)
        self._seen.add(name)

    def backward(self, loss: Tensor, parameters: Tensors) -> dict[str, Tensor]:
        """The gradient of a loss by parameter name; zeros where the loss does not depend on the parameter."""
        self._seen.clear()
        torch.autograd.backward(loss)
        for name in parameters.keys() - self._seen:
            self._kept[name] = torch.zeros_like(parameters[name], requires_grad=False)
        return {name: self._kept[name] for name in parameters}
