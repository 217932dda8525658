"""Computes the memory of a forward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from thinwire_proto.blobs import BlobMissing
from thinwire_proto.contract import ModelSpec
from thinwire_proto.task import Batch, Task

SMALL_MULTIPLICATIONS = 1 << 30
"""Of a forward pass, at most: it then takes some 30 ms and MB."""


def activation_bytes(task: Task, spec: ModelSpec) -> int:
    """Bytes that a forward pass of one sample keeps for the backward pass, parameters not included.

    Runs the pass: of a small model really, else on tensors without memory. 0 if it cannot be found: some models look at
    the values of theirs."""
    small = _multiplications_at_most(task, spec) <= SMALL_MULTIPLICATIONS
    try:
        return _kept_bytes(task, spec) if small else _kept_bytes_without_memory(task, spec)
    except (RuntimeError, TypeError, BlobMissing):
        return 0


def _multiplications_at_most(task: Task, spec: ModelSpec) -> int:
    """Each parameter is used once a position of the sample, or less often."""
    parameters = {id(tensor): tensor.numel() for _, tensor in task.model("meta").named_parameters()}
    return sum(parameters.values()) * max(tensor[0].numel() for tensor in _sample(spec))


def _kept_bytes_without_memory(task: Task, spec: ModelSpec) -> int:
    # imported here, because it loads torch's compiler: over a second of processor time, and 155 MB
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415

    with FakeTensorMode(allow_non_fake_inputs=True):
        return _kept_bytes(task, spec)


def _kept_bytes(task: Task, spec: ModelSpec) -> int:
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor  # holds it, so that its address is not used again
        return tensor

    model = task.model("cpu")
    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.loss(*_sample(spec))
    own = {tensor.untyped_storage()._cdata for _, tensor in model.named_parameters()}
    return sum(tensor.untyped_storage().nbytes() for storage, tensor in kept.items() if storage not in own)


def _sample(spec: Any) -> Batch:
    """One sample of the shape that a model of this kind trains on: an image with its class, or a text."""
    if (size := getattr(spec, "image_size", 0)) > 0:
        return torch.zeros(1, spec.channels, size, size), torch.zeros(1, dtype=torch.int64)
    return (torch.zeros(1, spec.context + 1, dtype=torch.int64),)
