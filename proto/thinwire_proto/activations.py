"""Computes the memory of a forward pass."""

from __future__ import annotations

import ctypes
import logging
from contextlib import suppress
from typing import Any, cast

import torch
from torch import Tensor, nn

from thinwire_proto.contract import ModelSpec
from thinwire_proto.contract.data.images import CHANNELS
from thinwire_proto.task import Batch, Model, Task

log = logging.getLogger("thinwire")

SMALL_POSITIONS, SMALL_PARAMETERS, SMALL_MULTIPLICATIONS = 256, 1 << 26, 1 << 31
"""Bounds of a sample, of the model, and of its forward pass, up to which the pass is really run. They bound its time
and memory, whoever wrote the contract: parameters take 268 MB at most, and so does attention over 256 positions with
heads of one number each."""
KEPT_BYTES_MAX = 1 << 28
"""A pass that keeps more is not run to its end."""


class _KeepsMuch(Exception):
    """The pass keeps more than it may."""


def activation_bytes(task: Task, spec: ModelSpec) -> int:
    """Bytes that a forward pass of one sample keeps for the backward pass, parameters not included.

    Runs the pass: of a small model really, else on tensors without memory. 0 if it cannot be found: some models branch
    on the values of tensors, and others cannot have a sample as long as the contract's."""
    try:
        if _is_small(task, spec):
            with suppress(_KeepsMuch):
                return _kept_bytes(_model(task), spec, KEPT_BYTES_MAX)
        return _kept_bytes_without_memory(task, spec)
    except Exception as error:  # noqa: BLE001 - the models are of other libraries, which raise anything
        log.debug("the activations cannot be measured: %r", error)
        return 0
    finally:
        give_back()


def _is_small(task: Task, spec: ModelSpec) -> bool:
    positions = max(tensor[0].numel() for tensor in _sample(spec)) - 1
    parameters = sum({id(tensor): tensor.numel() for _, tensor in task.model("meta").named_parameters()}.values())
    multiplications = positions * parameters  # each parameter is used once a position, or less often
    return positions <= SMALL_POSITIONS and parameters <= SMALL_PARAMETERS and multiplications <= SMALL_MULTIPLICATIONS


def _kept_bytes_without_memory(task: Task, spec: ModelSpec) -> int:
    # imported here, because it loads torch's compiler: over a second of processor time, and 155 MB
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415

    base = task.model("meta") if task.blobs() else None  # peft cannot build one in this mode
    with FakeTensorMode(allow_non_fake_inputs=True):
        return _kept_bytes(task.model("cpu") if base is None else _with_memory(base), spec, None)


def _kept_bytes(model: Model, spec: ModelSpec, most: int | None) -> int:
    """most: raise _KeepsMuch beyond so many bytes."""
    total = 0
    # it holds them, so that their addresses are not used again; detached, because the graph holds `keep`
    known: dict[int, Tensor] = {tensor.untyped_storage()._cdata: tensor for _, tensor in model.named_parameters()}

    def keep(tensor: Tensor) -> None:
        nonlocal total
        storage = tensor.untyped_storage()
        if storage._cdata not in known:
            known[storage._cdata] = tensor.detach()
            total += storage.nbytes()
        if most is not None and total > most:
            raise _KeepsMuch

    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(keep, lambda _: torch.empty(0)):
        model.loss(*_sample(spec))
    return total


def _model(task: Task) -> Model:
    """The model with memory. Its values do not matter: those of a base are not here yet."""
    return _with_memory(task.model("meta")) if task.blobs() else task.model("cpu")


def _with_memory(model: Model) -> Model:
    cast(nn.Module, model).to_empty(device="cpu")
    return model


def _sample(spec: Any) -> Batch:
    """One sample of the shape that a model of this kind trains on: an image with its class, or a text."""
    if (size := getattr(spec, "image_size", 0)) > 0:
        return torch.zeros(1, CHANNELS, size, size), torch.zeros(1, dtype=torch.int64)
    return (torch.zeros(1, spec.context + 1, dtype=torch.int64),)


def give_back() -> None:
    """Give the freed memory of this process back to the system. glibc keeps freed memory that lies below memory in use,
    so the process stays as large as its peak. Does nothing with other C libraries."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
