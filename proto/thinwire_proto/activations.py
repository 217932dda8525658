"""Computes the memory of a forward pass."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from thinwire_proto.blobs import BlobMissing
from thinwire_proto.contract import ModelSpec
from thinwire_proto.task import Batch, Task

SMALL_POSITIONS, SMALL_MULTIPLICATIONS = 256, 1 << 28
"""Of a sample and of its forward pass, at most, for a pass that is really run. Neither the time of such a pass nor one
tensor in it can be large, even if a stranger has made the contract for that: attention over 256 positions takes 268 MB
at most, with heads of one number each."""
KEPT_BYTES_MAX = 1 << 28
"""A pass that keeps more is not run to its end."""


class _KeepsMuch(Exception):
    """The pass keeps more than it may."""


def activation_bytes(task: Task, spec: ModelSpec) -> int:
    """Bytes that a forward pass of one sample keeps for the backward pass, parameters not included.

    Runs the pass: of a small model really, else on tensors without memory. 0 if it cannot be found: some models look at
    the values of theirs."""
    try:
        if _is_small(task, spec):
            with suppress(_KeepsMuch):
                return _kept_bytes(task, spec, KEPT_BYTES_MAX)
        return _kept_bytes_without_memory(task, spec)
    except (RuntimeError, TypeError, BlobMissing):
        return 0


def _is_small(task: Task, spec: ModelSpec) -> bool:
    positions = max(tensor[0].numel() for tensor in _sample(spec)) - 1
    parameters = {id(tensor): tensor.numel() for _, tensor in task.model("meta").named_parameters()}
    # each parameter is used once a position, or less often
    return positions <= SMALL_POSITIONS and positions * sum(parameters.values()) <= SMALL_MULTIPLICATIONS


def _kept_bytes_without_memory(task: Task, spec: ModelSpec) -> int:
    # imported here, because it loads torch's compiler: over a second of processor time, and 155 MB
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415

    with FakeTensorMode(allow_non_fake_inputs=True):
        return _kept_bytes(task, spec, None)


def _kept_bytes(task: Task, spec: ModelSpec, most: int | None) -> int:
    """most: raise _KeepsMuch beyond so many bytes, parameters included."""
    kept: dict[int, int] = {}
    total, held = 0, []

    def keep(tensor: Tensor) -> Tensor:
        nonlocal total
        storage = tensor.untyped_storage()
        if storage._cdata not in kept:
            kept[storage._cdata] = storage.nbytes()
            held.append(tensor)  # so that its address is not used again
            total += storage.nbytes()
        if most is not None and total > most:
            raise _KeepsMuch
        return tensor

    model = task.model("cpu")
    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.loss(*_sample(spec))
    own = {tensor.untyped_storage()._cdata for _, tensor in model.named_parameters()}
    return sum(size for storage, size in kept.items() if storage not in own)


def _sample(spec: Any) -> Batch:
    """One sample of the shape that a model of this kind trains on: an image with its class, or a text."""
    if (size := getattr(spec, "image_size", 0)) > 0:
        return torch.zeros(1, spec.channels, size, size), torch.zeros(1, dtype=torch.int64)
    return (torch.zeros(1, spec.context + 1, dtype=torch.int64),)
