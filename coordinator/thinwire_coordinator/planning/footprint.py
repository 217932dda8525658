"""Finds the sizes of a model without allocating it. Needs torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from thinwire_coordinator.planning.facts import ModelFacts
from thinwire_proto.blobs import BlobMissing
from thinwire_proto.contract import ModelSpec
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.task import Task, Writes, task_of


def facts_of(spec: ModelSpec, *, begins: bool = False) -> ModelFacts:
    """The facts of a model of any kind, as a contract has it. begins: whether the run file names weights to begin from.

    Raises ConfigError or ContractError if it cannot be built here.
    """
    task = task_of(spec)
    layout = TileLayout(task.manifest())
    model = task.model("meta")
    whole = sum(tensor.numel() for tensor in {id(tensor): tensor for _, tensor in model.named_parameters()}.values())
    return ModelFacts(
        trained=layout.parameters,
        matrix_tiles=layout.matrix_tiles,
        vector_tiles=layout.vector_tiles,
        context=spec.context,
        frozen=max(0, whole - layout.parameters),
        begins=begins,
        activation_bytes=_activation_bytes(task, spec.context) if isinstance(model, Writes) else 0,
    )


def _activation_bytes(task: Task, context: int) -> int:
    """Bytes that a forward pass of one sample keeps for the backward pass, parameters not included. 0 if it cannot be
    found: the pass runs on tensors without memory, and some models look at the values of theirs."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor  # holds it, so that its address is not used again
        return tensor

    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = task.model("cpu")
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                model.loss(torch.zeros(1, context + 1, dtype=torch.int64))
    except (RuntimeError, BlobMissing):
        return 0
    own = {tensor.untyped_storage()._cdata for _, tensor in model.named_parameters()}
    return sum(tensor.untyped_storage().nbytes() for storage, tensor in kept.items() if storage not in own)
