"""Computes the loss and the gradients of a batch.

`Compute` is the port. `TorchCompute` implements it for one device of this machine. Another implementation could use
several cards.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from thinwire_node.training.gradient_receiver import (
    ROUNDING_MAX,
    GradientReceiver,
    NotFinite,
    add_gradient,
    check_finite,
)
from thinwire_node.training.precision import compute_dtype, full_float32
from thinwire_proto.blobs import Blobs
from thinwire_proto.task import NO_BLOBS, Batch, Model, Stateless, Task

log = logging.getLogger("thinwire.node")

Tensors = Mapping[str, Tensor]
"""Tensors by parameter name, float32, in the parameter's shape."""


class Interrupted(Exception):
    """The batch was aborted. Nothing of it was kept, unless `spoils`: then the sums hold a part of its gradient."""

    spoils = False


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

    def add_gradients(self, batch: Batch, sums: Tensors, weight: int) -> Tensor:
        """Compute the mean loss of a batch, and add its gradient times `weight` to `sums`, which are on `device`.

        Raises NotFinite and Interrupted. The sums are then what they were, but for rounding, unless the exception says
        that it spoils them."""

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
        self._received = GradientReceiver() if device.type == "cpu" else None
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
        loss = self._loss(batch)
        # a parameter that this loss does not use gets zeros, such as an expert that no token went to
        if self._received is not None:
            return loss.detach(), self._received.backward(loss, self._parameters)
        found = torch.autograd.grad(loss, list(self._parameters.values()), allow_unused=True, materialize_grads=True)
        return loss.detach(), dict(zip(self._parameters, found, strict=True))

    def add_gradients(self, batch: Batch, sums: Tensors, weight: int) -> Tensor:
        if self._received is None:
            loss, found = self.gradients(batch)
            check_finite(loss, found)
            add_gradient(sums, found, weight)
            return loss
        random_state = torch.get_rng_state()
        loss = self._loss(batch)
        check_finite(loss)
        try:
            self._add(loss, sums, weight)
        except NotFinite as error:
            if error.spoils:
                torch.set_rng_state(random_state)
                self._take_back(batch, {name: sums[name] for name in self._received.seen}, weight)
            raise NotFinite from None
        return loss.detach()

    def _add(self, loss: Tensor, sums: Tensors, weight: int) -> None:
        assert self._received is not None
        try:
            self._received.add(loss, sums, weight)
        except Interrupted as error:
            error.spoils = bool(self._received.seen)
            raise

    def _take_back(self, batch: Batch, sums: Tensors, weight: int) -> None:
        """Compute the gradient again, and take it from the sums that it was added to. Keeping it until the last tensor
        is known to be finite would take as much memory as the sums. Raises NotFinite if that spoils the sums."""
        assert self._received is not None
        try:
            rounding = self._received.take(self._loss(batch), sums, weight)
        except Interrupted as error:
            error.spoils = True
            raise
        except NotFinite:
            raise NotFinite(spoils=True) from None
        if rounding > ROUNDING_MAX:
            raise NotFinite(spoils=True)

    def _loss(self, batch: Batch) -> Tensor:
        here = tuple(tensor.to(self.device) for tensor in batch)
        with torch.autocast(self.device.type, self._dtype, enabled=self._dtype != torch.float32):
            return self._model.loss(self._parameters, here)

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
