"""Counts the memory of a model in training, with each number of bits that its frozen base may have.

Frozen tensors are counted on a model without memory; `activations` counts what a pass takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from thinwire_proto.activations import activations_of
from thinwire_proto.contract import ModelSpec
from thinwire_proto.needs import FROZEN_BYTES_A_PARAMETER, GATHERED_BYTES_A_PARAMETER
from thinwire_proto.pass_memory import ModelMemory
from thinwire_proto.task import Model, task_of


@lru_cache(maxsize=16)
def memory_of(spec: ModelSpec, bits: int | None = None) -> ModelMemory:
    """The memory of a model with a base of so many bits. Builds it without its memory, which may take seconds.

    bits: one of the task's `base_bits`, or None if there are none."""
    task = task_of(spec) if bits is None else task_of(spec).in_bits(bits)
    model = task.model("meta")
    tensors = {id(tensor): tensor for _, tensor in model.named_parameters() if not tensor.requires_grad}
    buffers = sum(tensor.nbytes for module in model.modules() for tensor in module.buffers(recurse=False))
    if bits is None:
        activations = activations_of(task, spec)
        frozen = FROZEN_BYTES_A_PARAMETER * sum(tensor.numel() for tensor in tensors.values())
        return ModelMemory(frozen=frozen + buffers, activations=activations, loading=frozen)
    from thinwire_proto.models.frozen_base import dtype_of, loading_bytes  # noqa: PLC0415 - needs transformers
    from thinwire_proto.models.quantized import decoding_bytes  # noqa: PLC0415

    frozen = sum(tensor.nbytes for tensor in tensors.values())
    # a pass keeps no quantized matrix, so it keeps what it does with 16 bits
    activations = memory_of(spec, 16).activations if bits < 16 else activations_of(task, spec)
    of_module: Any = model
    decoding = decoding_bytes(of_module, dtype_of(bits))
    return ModelMemory(bits, frozen + buffers, activations, decoding, loading_bytes(of_module, bits))


def gathered_bytes(model: Model) -> int:
    """Memory for what a process holds of others at most, with its gradients, if none holds the whole model."""
    tensors = {id(tensor): tensor for _, tensor in model.named_parameters()}
    sizes = [sum(one.numel() for one in stage.parameters()) for stage in model.stages()]
    outside = sum(tensor.numel() for tensor in tensors.values()) - sum(sizes)
    return GATHERED_BYTES_A_PARAMETER * (max(outside, 0) + max(sizes, default=0))


def memories_of(spec: ModelSpec) -> Iterator[ModelMemory]:
    """`memory_of` each number of bits that the base may have, the most exact first."""
    for bits in task_of(spec).base_bits or (None,):
        yield memory_of(spec, bits)
