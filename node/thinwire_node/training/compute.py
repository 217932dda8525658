"""Computes the loss and the gradients of a batch.

`Compute` is the port. `TorchCompute` implements it for one device of this machine. Another implementation could use
several cards.
"""

from __future__ import annotations

import logging
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from thinwire_node.training.checkpoints import checkpoint_stage
from thinwire_node.training.device import LossScale, compute_dtype, full_float32
from thinwire_node.training.failures import Interrupted, NotFinite, OutOfMemory
from thinwire_node.training.gradient_receiver import ROUNDING_MAX, GradientReceiver, Tensors, add_gradient, check_finite
from thinwire_node.training.micro_batch import MicroBatch
from thinwire_proto.blobs import Blobs
from thinwire_proto.out_of_memory import is_out_of_memory, reason_of
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import NO_BLOBS, Batch, Model, Task

FOLDER = "compiled"
"""Code of the compiler, in the state directory: it leaves nothing elsewhere, and the next start compiles less."""
COMPILER_BYTES = 300 << 20
"""Memory that torch's compiler takes, as measured, and keeps."""
SAMPLES = (2, 1)
"""The compiler makes code for one sample, and code for any number above it."""


def set_up_compiler(state_dir: Path) -> None:
    """Call it before the first stage of a process is compiled: torch reads these variables with its compiler."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(state_dir / FOLDER)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # more would be processes that stay


class CompiledStages:
    """Stages that `torch.compile` compiles when they are first called. is_on: whether a call uses the compiled code.

    A stage is compiled by itself, without the hooks between stages: there a node that has to leave ends its pass, which
    is not to wait for a whole model. A pass without gradients is left as it is. A compiler takes 10 seconds to a few
    minutes, so it runs before the node trains, for one sample and for several: a batch of another size then needs no
    new code. It changes the rounding of a gradient and no bit of a replica."""

    def __init__(self) -> None:
        self.is_on = True

    def add(self, stage: nn.Module) -> None:
        """Compile this stage at its first call."""
        plain = stage.forward
        compiled: Callable[..., Any] = torch.compile(plain)

        def forward(*arguments: Any, **named: Any) -> Any:
            if not (self.is_on and torch.is_grad_enabled()):
                return plain(*arguments, **named)
            if arguments and isinstance(arguments[0], Tensor) and len(arguments[0]) > 1:
                torch._dynamo.maybe_mark_dynamic(arguments[0], 0)
            return compiled(*arguments, **named)

        stage.forward = forward


log = logging.getLogger("thinwire.node")
Result = TypeVar("Result")


class Compute(Protocol):
    """One model on some hardware. One thread calls every method except `interrupt`."""

    device: torch.device
    """The device of the gradients and of a local rule's tensors."""
    micro_batch: MicroBatch
    """The samples that fit into a pass, for a caller to split batches by."""

    @property
    def parameters(self) -> Tensors:
        """The current parameters, on `device`. If they were given with an offset, a local rule may change them in
        place."""

    def weight(self, batch: Batch) -> int:
        """The weight of a batch's mean loss and gradient beside those of another: see `Stateless.weight`."""

    def use(self, parameters: Tensors, offset: Tensors | None = None) -> None:
        """Compute with these parameters from now on.

        Uses the tensors themselves if they are on `device` and there is no offset. Otherwise makes copies on `device`
        and adds `offset` to them."""

    def gradients(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute the mean loss of a batch and its gradient by parameter name. The tensors are the caller's until the
        next call. Raises NotFinite, Interrupted and OutOfMemory."""

    def add_gradients(self, batch: Batch, sums: Tensors, weight: int) -> Tensor:
        """Compute the mean loss of a batch, and add its gradient times `weight` to `sums`, which are on `device`.

        Raises NotFinite. The sums are then what they were, but for rounding, unless the exception says that it spoils
        them. Raises Interrupted and OutOfMemory, which say to which sums the gradient is added already."""

    def loss(self, parameters: Tensors, batch: Batch) -> float:
        """Compute the mean loss of a batch with these parameters, in float32 and without a gradient. Does not change
        what `use` set. Raises Interrupted and TooLittleMemory."""

    def interrupt(self) -> None:
        """Abort the running batch and every later one, since a batch takes minutes on a slow machine. May be called
        from any thread."""

    def resume(self) -> None:
        """Compute again after `interrupt`. May be called from any thread."""


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
    """Computes on one torch device. Passes may use bfloat16 or float16; parameters and gradients are float32.

    compiles: the model's stages are compiled; see `compile`."""

    def __init__(
        self,
        task: Task,
        device: torch.device,
        blobs: Blobs = NO_BLOBS,
        micro_batch: MicroBatch | None = None,
        *,
        compiles: bool = False,
    ) -> None:
        self.device = device
        self.micro_batch = micro_batch or MicroBatch()
        self._dtype = compute_dtype(device)
        self._scale = LossScale(self._dtype)
        self._model = Stateless(task.model(device, blobs))
        self._parameters: dict[str, Tensor] = {}
        self._copies: dict[str, Tensor] | None = None  # None while `_parameters` are the caller's own tensors
        self._received = GradientReceiver() if device.type == "cpu" else None
        self._is_interrupted = threading.Event()
        self._compiled = CompiledStages()
        for stage in self._model.model.stages():
            if compiles:
                self._compiled.add(stage)
            checkpoint_stage(stage, lambda: self.micro_batch.checkpoints)
            stage.register_forward_hook(self._after_stage)

    @property
    def parameters(self) -> Tensors:
        return self._parameters

    def weight(self, batch: Batch) -> int:
        return self._model.weight(batch)

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

    def compile(self, parameters: Tensors, sample: Batch) -> str | None:
        """Compile the stages now, with parameters of any values, and a batch of one sample of any values. Returns why
        that cannot be, in words; then the stages are used as they are. Raises Interrupted."""
        self.use(parameters)
        sums = {name: torch.zeros_like(tensor) for name, tensor in parameters.items()}  # `gradients` would keep its own
        for samples in SAMPLES:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # the compiler's are about torch's own code
                    self.add_gradients(tuple(torch.cat([tensor] * samples) for tensor in sample), sums, 1)
            except (NotFinite, OutOfMemory):  # of a pass: its code is there
                continue
            except Interrupted:
                raise
            except Exception as error:  # noqa: BLE001 - torch's compiler raises errors of many kinds
                self._compiled.is_on = False
                return str(error).strip().partition("\n")[0]
        return None

    def gradients(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        return self._in_memory(partial(self._gradients, batch))

    def _gradients(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        while True:
            loss = self._loss(batch)
            check_finite(loss)
            gradients = self._gradients_of(loss)
            try:
                check_finite(loss, gradients)
            except NotFinite:
                if not self._scale.too_large():
                    raise
            else:
                self._scale.fitted()
                return loss.detach(), gradients
            del loss, gradients  # before the next pass

    def _gradients_of(self, loss: Tensor) -> dict[str, Tensor]:
        # a parameter that this loss does not use gets zeros, such as an expert that no token went to
        if self._received is not None:
            return self._received.backward(loss, self._parameters)
        leaves, scale = list(self._parameters.values()), self._scale.value
        found = list(torch.autograd.grad(loss * scale, leaves, allow_unused=True, materialize_grads=True))
        if scale != 1:
            for number, gradient in enumerate(found):  # one by one, so that each takes the place of the one before
                found[number] = gradient / scale
        return dict(zip(self._parameters, found, strict=True))

    def add_gradients(self, batch: Batch, sums: Tensors, weight: int) -> Tensor:
        if self._received is None:
            loss, found = self.gradients(batch)
            add_gradient(sums, found, weight)
            return loss
        self._received.seen.clear()
        return self._in_memory(partial(self._add_gradients, batch, sums, weight), self._received.seen)

    def _add_gradients(self, batch: Batch, sums: Tensors, weight: int) -> Tensor:
        assert self._received is not None
        random_state = torch.get_rng_state()
        loss = self._loss(batch)
        check_finite(loss)
        try:
            self._add(loss, sums, weight)
        except NotFinite as error:
            if error.spoils:
                torch.set_rng_state(random_state)
                self._take_back(batch, {name: sums[name] for name in self._received.seen if name in sums}, weight)
            raise NotFinite from None
        return loss.detach()

    def _in_memory(self, work: Callable[[], Result], added: Iterable[str] = ()) -> Result:
        """Call `work`. Raises OutOfMemory in place of an error that says so. added: see there."""
        try:
            return work()
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            reason = reason_of(error)
        # here, where the error no longer holds the pass that failed
        for parameter in self._parameters.values():
            parameter.grad = None
        raise OutOfMemory(reason, frozenset(added))

    def _add(self, loss: Tensor, sums: Tensors, weight: int) -> None:
        assert self._received is not None
        try:
            self._received.add(loss, sums, weight)
        except Interrupted as error:
            error.added, error.weight = frozenset(self._received.seen), weight
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
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise NotFinite(spoils=True) from None
        if rounding > ROUNDING_MAX:
            raise NotFinite(spoils=True)

    def _loss(self, batch: Batch) -> Tensor:
        here = tuple(tensor.to(self.device) for tensor in batch)
        with torch.autocast(self.device.type, self._dtype, enabled=self._dtype != torch.float32):
            return self._model.loss(self._parameters, here)

    @torch.no_grad()
    def loss(self, parameters: Tensors, batch: Batch) -> float:
        placed = {name: tensor.to(self.device) for name, tensor in parameters.items()}
        losses: list[tuple[float, int]] = []

        def measure(piece: Batch, sums: Tensors | None) -> None:
            losses.append((self._in_memory(partial(self._held_out_loss, placed, piece)), self.weight(piece)))

        self.micro_batch.in_pieces(batch, None, measure)
        if len(losses) == 1:
            return losses[0][0]
        return sum(loss * weight for loss, weight in losses) / sum(weight for _, weight in losses)

    def _held_out_loss(self, parameters: Tensors, batch: Batch) -> float:
        self._check_interrupted()
        here = tuple(tensor.to(self.device) for tensor in batch)
        with full_float32(), evaluating(self._model.model):
            return float(self._model.loss(parameters, here))

    def _receive_gradients(self) -> None:
        if self._received is not None:
            self._received.attach(self._parameters)

    def interrupt(self) -> None:
        self._is_interrupted.set()

    def resume(self) -> None:
        self._is_interrupted.clear()

    def _after_stage(self, stage: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        """Check for an interrupt after each stage, in the forward and the backward pass."""
        self._check_interrupted()
        first = output[0] if isinstance(output, tuple | list) else output
        if isinstance(first, Tensor) and first.requires_grad:
            first.register_hook(lambda gradient: self._check_interrupted())  # type: ignore[no-untyped-call]

    def _check_interrupted(self) -> None:
        if self._is_interrupted.is_set():
            raise Interrupted
