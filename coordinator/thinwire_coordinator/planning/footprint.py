"""Finds the sizes of a model without allocating it. Needs torch."""

from __future__ import annotations

from thinwire_coordinator.planning.facts import ModelFacts
from thinwire_proto.activations import activation_bytes
from thinwire_proto.contract import ModelSpec
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.task import Writes, task_of


def facts_of(spec: ModelSpec, *, begins: bool = False) -> ModelFacts:
    """The facts of a model of any kind, as a contract has it. begins: whether the run file names weights to begin from.

    Raises ConfigError or ContractError if it cannot be built here.
    """
    task = task_of(spec)
    manifest = tuple(task.manifest())
    layout = TileLayout(manifest)
    model = task.model("meta")
    whole = sum(tensor.numel() for tensor in {id(tensor): tensor for _, tensor in model.named_parameters()}.values())
    return ModelFacts(
        trained=layout.parameters,
        matrix_tiles=layout.matrix_tiles,
        vector_tiles=layout.vector_tiles,
        context=spec.context,
        frozen=max(0, whole - layout.parameters),
        begins=begins,
        parameters=manifest,
        activation_bytes=activation_bytes(task, spec) if isinstance(model, Writes) else 0,
    )
