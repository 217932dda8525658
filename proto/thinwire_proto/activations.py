"""Computes the memory of a forward pass, before anything is allocated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from thinwire_proto.blobs import BlobMissing
from thinwire_proto.contract import ModelSpec
from thinwire_proto.task import Batch, Task


def activation_bytes(task: Task, spec: ModelSpec) -> int:
    """Bytes that a forward pass of one sample keeps for the backward pass, parameters not included. Allocates nothing.

    0 if it cannot be found: the pass runs on tensors without memory, and some models look at the values of theirs."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor  # holds it, so that its address is not used again
        return tensor

    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = task.model("cpu")
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                model.loss(*_sample(spec))
    except (RuntimeError, TypeError, BlobMissing):
        return 0
    own = {tensor.untyped_storage()._cdata for _, tensor in model.named_parameters()}
    return sum(tensor.untyped_storage().nbytes() for storage, tensor in kept.items() if storage not in own)


def _sample(spec: Any) -> Batch:
    """One sample of the shape that a model of this kind trains on: an image with its class, or a text."""
    if (size := getattr(spec, "image_size", 0)) > 0:
        return torch.zeros(1, spec.channels, size, size), torch.zeros(1, dtype=torch.int64)
    return (torch.zeros(1, spec.context + 1, dtype=torch.int64),)
