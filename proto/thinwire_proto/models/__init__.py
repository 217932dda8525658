"""The model kinds; each kind is one file of this package. Both ends build a model from its spec alone."""

from __future__ import annotations

import torch

from thinwire_proto.contract import Contract, DecoderSpec, ModelSpec
from thinwire_proto.contract.models.presets import BYTE_PRESETS, LLAMA_PRESETS, PRESETS
from thinwire_proto.errors import ContractError
from thinwire_proto.models.decoder import Decoder
from thinwire_proto.models.trained import manifest
from thinwire_proto.task import task_of

__all__ = ["BYTE_PRESETS", "LLAMA_PRESETS", "PRESETS", "build_decoder", "check_manifest", "initial_state", "manifest"]


def build_decoder(spec: ModelSpec, device: torch.device | str = "cpu") -> Decoder:
    """The decoder of `spec`, with uninitialised parameters on `device` ("meta" allocates nothing). For benchmarks and
    tests; `task_of(spec).model(device)` builds a model of any kind. Raises ContractError if the kind is another."""
    if not isinstance(spec, DecoderSpec):
        raise ContractError(f"model.kind: {spec.kind!r} is not a decoder")
    with torch.device(device):
        return Decoder(spec)


def check_manifest(contract: Contract) -> None:
    """Raise ContractError, naming the tensor, if the model built here differs from the contract's manifest."""
    ours = {parameter.name: parameter.shape for parameter in task_of(contract.model).manifest()}
    theirs = {parameter.name: parameter.shape for parameter in contract.parameters}
    for name in [*theirs, *ours]:
        if ours.get(name) != theirs.get(name):
            raise ContractError(
                f"parameters.{name}: shape {ours.get(name, 'none')} here, {theirs.get(name, 'none')} in the contract; "
                "the two ends run different versions of the model family"
            )
    if list(ours) != list(theirs):
        raise ContractError("parameters: the order of tensors differs; the two ends run different versions")


def initial_state(spec: ModelSpec, seed: int) -> dict[str, torch.Tensor]:
    """See `Task.initial_state`."""
    return task_of(spec).initial_state(seed)
