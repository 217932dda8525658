"""Finds the sizes of a model without allocating it. The only module of this package that needs torch."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire_coordinator.planning.facts import ModelFacts
from thinwire_proto.contract import ModelSpec
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.task import Model, Writes, task_of


def facts_of(spec: ModelSpec) -> ModelFacts:
    """The facts of a model of any kind. Raises ConfigError or ContractError if it cannot be built here."""
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
        activation_bytes=_activation_bytes(model, spec.context) if isinstance(model, Writes) else 0,
    )


def _activation_bytes(model: Model, context: int) -> int:
    """What a forward pass of one sample of text keeps for the backward pass, parameters not included.

    The pass runs on tensors without memory. There, torch keeps the scores of the attention, context × context. The
    kernels of CPUs and cards compute them again (arXiv 2205.14135), so they are not counted.
    """
    kept: dict[int, int] = {}
    own = {tensor.untyped_storage()._cdata for _, tensor in model.named_parameters()}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own and tuple(tensor.shape[-2:]) != (context, context):
            kept[storage._cdata] = storage.nbytes()
            alive.append(tensor)
        return tensor

    alive: list[Tensor] = []  # so that no storage is freed, and its address used again, during the pass
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.loss(torch.zeros(1, context + 1, dtype=torch.int64, device="meta"))
    return sum(kept.values())
