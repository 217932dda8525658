"""Computes the memory of a forward pass."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any, cast

import torch
from torch import Tensor, nn

from thinwire_proto.contract import ModelSpec
from thinwire_proto.contract.data.images import CHANNELS
from thinwire_proto.out_of_memory import give_back
from thinwire_proto.pass_memory import Activations
from thinwire_proto.task import Batch, Model, Task

log = logging.getLogger("thinwire")

SMALL_POSITIONS, SMALL_PARAMETERS, SMALL_MULTIPLICATIONS = 256, 1 << 26, 1 << 31
"""Bounds of a sample, of the model, and of its forward pass, up to which the pass is really run. They bound its time
and memory, whoever wrote the contract: parameters take 268 MB at most, and so does attention over 256 positions with
heads of one number each."""
GRADIENTS_OF_LOSS = 2
"""Tensors as large as the largest that is kept outside the stages, which for a text is the logarithms of probabilities:
their gradient, and that of the logits, which is computed from it."""
KEPT_BYTES_MAX = 1 << 28
"""A pass that keeps more is not run to its end."""


class _KeepsMuch(Exception):
    """The pass keeps more than it may."""


def activations_of(task: Task, spec: ModelSpec) -> Activations:
    """Find out what a forward pass keeps.

    Runs the pass: of a small model really, else on tensors without memory. It cannot be found of all models: some
    branch on the values of tensors, and others cannot have a sample as long as the contract's."""
    try:
        if _is_small(task, spec):
            with suppress(_KeepsMuch):
                return _kept(_model(task), spec, KEPT_BYTES_MAX)
        return _kept_without_memory(task, spec)
    except Exception as error:  # noqa: BLE001 - the models are of other libraries, which raise anything
        log.debug("the activations cannot be measured: %r", error)
        return Activations()
    finally:
        give_back()


def _is_small(task: Task, spec: ModelSpec) -> bool:
    positions = max(tensor[0].numel() for tensor in sample_of(spec)) - 1
    parameters = sum({id(tensor): tensor.numel() for _, tensor in task.model("meta").named_parameters()}.values())
    multiplications = positions * parameters  # each parameter is used once a position, or less often
    return positions <= SMALL_POSITIONS and parameters <= SMALL_PARAMETERS and multiplications <= SMALL_MULTIPLICATIONS


def _kept_without_memory(task: Task, spec: ModelSpec) -> Activations:
    # imported here, because it loads torch's compiler: over a second of processor time, and 155 MB
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415

    base = task.model("meta") if task.blobs() else None  # peft cannot build one in this mode
    with FakeTensorMode(allow_non_fake_inputs=True):
        return _kept(task.model("cpu") if base is None else _with_memory(base), spec, None)


def _kept(model: Model, spec: ModelSpec, most: int | None) -> Activations:
    """most: raise _KeepsMuch beyond so many bytes."""
    total, of_stages, inputs, outside, in_stage = 0, [0], 0, 0, False
    # it holds them, so that their addresses are not used again; detached, because the graph holds `keep`
    known: dict[int, Tensor] = {tensor.untyped_storage()._cdata: tensor for _, tensor in model.named_parameters()}
    held = dict(known)

    def keep(tensor: Tensor) -> None:
        nonlocal total, outside
        new = _new_bytes(tensor, known)
        total += new
        if not in_stage:
            outside = max(outside, new)
        if most is not None and total > most:
            raise _KeepsMuch

    def enter(stage: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        nonlocal inputs, in_stage
        in_stage = True
        tensors = (one for one in (*arguments, *named.values()) if isinstance(one, Tensor))
        inputs += sum(_new_bytes(tensor, held) for tensor in tensors)
        of_stages.append(-total)

    def leave(stage: nn.Module, arguments: tuple[Any, ...], output: object) -> None:
        nonlocal in_stage
        in_stage = False
        of_stages[-1] += total

    for stage in model.stages():
        stage.register_forward_pre_hook(enter, with_kwargs=True)
        stage.register_forward_hook(leave)
    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(keep, lambda _: torch.empty(0)):
        model.loss(*sample_of(spec))
    checkpointed = total - sum(of_stages) + inputs + max(of_stages)
    return Activations(total, checkpointed, max(of_stages), GRADIENTS_OF_LOSS * outside)


def _new_bytes(tensor: Tensor, known: dict[int, Tensor]) -> int:
    """The bytes of a tensor's storage; 0 if it is known. It is known afterwards."""
    storage = tensor.untyped_storage()
    if storage._cdata in known:
        return 0
    known[storage._cdata] = tensor.detach()
    return storage.nbytes()


def _model(task: Task) -> Model:
    """The model with memory. Its values do not matter: those of a base are not here yet."""
    return _with_memory(task.model("meta")) if task.blobs() else task.model("cpu")


def _with_memory(model: Model) -> Model:
    cast(nn.Module, model).to_empty(device="cpu")
    return model


def sample_of(spec: Any) -> Batch:
    """One sample of the shape that a model of this kind trains on: an image with its class, or a text."""
    if (size := getattr(spec, "image_size", 0)) > 0:
        return torch.zeros(1, CHANNELS, size, size), torch.zeros(1, dtype=torch.int64)
    return (torch.zeros(1, spec.context + 1, dtype=torch.int64),)
