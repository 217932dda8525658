"""Checks what a script gives to `Gossip` before the ranks meet, finds what is mixed, and whether a state is whole."""

from __future__ import annotations

import hashlib
import math
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from numbers import Real
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from thinwire.placement import check_between_sites, mesh_of, named, refuse_partial
from thinwire_proto.errors import ConfigError
from thinwire_proto.gossip.iteration import SLACK_MAX
from thinwire_proto.gossip.push_sum import CODECS

PATIENCE_MAX = timedelta(days=30).total_seconds()
"""gloo and threads count a wait in 64 bits of nanoseconds."""
Check = tuple[Callable[[Any], bool], str]
"""Whether a value can be, and in words what it must be."""


def _number(least: float, most: float = sys.float_info.max, *, or_least: bool = False) -> Callable[[Any], bool]:
    """Above `least`, or also equal to it."""

    def can_be(value: Any) -> bool:
        if not isinstance(value, Real):
            return False
        number = float(value)
        return least < number <= most or (or_least and number == least)

    return can_be


def _whole(least: int, most: float = math.inf) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and least <= value <= most


A_NAME: Check = lambda value: isinstance(value, str), "a name, such as those in docs/decentralized.md"
CHECKS: dict[str, Check] = {
    "topology": A_NAME,
    "codec": A_NAME,
    "gamma": (_number(0, 1), "above 0, and at most 1"),
    "gradient_pull": (_number(0, 1, or_least=True), "0 to 1"),
    "every": (_whole(1), "a whole number, 1 or more"),
    "slack": (_whole(0, SLACK_MAX), f"a whole number, 0 to {SLACK_MAX}"),
    "patience_s": (_number(0, PATIENCE_MAX), f"above 0, and at most {PATIENCE_MAX:.0f}"),
    "per_host": (lambda value: value is None or _whole(1)(value), "a whole number, 1 or more"),
    "seed": (lambda value: isinstance(value, int), "a whole number"),
    "consensus_target": (lambda value: value is None or _number(0)(value), "above 0 steps"),
}
"""Of the arguments of `Gossip`."""


def check_settings(given: Mapping[str, Any]) -> None:
    """Raises ConfigError for an argument of `Gossip` that cannot be."""
    for name, (can_be, words) in CHECKS.items():
        if not can_be(given[name]):
            raise ConfigError(f"{name} must be {words}; it is {given[name]!r}")


def check_unwrapped(model: nn.Module, optimizer: Optimizer, mixed: Iterable[Tensor] = ()) -> None:
    """Raises ConfigError for what a framework has wrapped, sharded or not yet filled with values.

    mixed: parameters that must still be the model's."""
    refuse_partial("Gossip", model.named_buffers())
    mesh_of("Gossip", model.named_parameters())
    mesh_of("Gossip", (one for group in optimizer.param_groups for one in named(group)))
    if any(one.__name__ == "ZeroRedundancyOptimizer" for one in type(optimizer).__mro__):  # slow to import
        raise ConfigError(
            "ZeroRedundancyOptimizer overwrites the parameters of all ranks by those of the rank that steps them; give "
            "Gossip the optimizer inside, with all parameters on each rank"
        )
    if any(isinstance(module, DistributedDataParallel) for module in model.modules()):
        raise ConfigError(
            "the model is in DistributedDataParallel, which averages the gradients of all ranks; give Gossip the "
            "module inside (`model.module`), and run each forward and backward pass under `model.no_sync()`"
        )
    if not hasattr(optimizer, "_optimizer_step_pre_hooks"):
        raise ConfigError(
            f"{type(optimizer).__name__} has no hooks, so it wraps another optimizer; give Gossip that one, for "
            "example before Accelerate's `prepare`"
        )
    of_model = {id(parameter) for parameter in model.parameters()}
    if any(id(parameter) not in of_model for parameter in mixed):
        raise ConfigError(
            "parameters of the model were replaced after Gossip was created, as FSDP does, so it would mix those that "
            "nobody trains; create optimizer and Gossip last, after fully_shard"
        )


def check_mixed(optimizer: Optimizer, mixed: Iterable[Tensor]) -> None:
    """Raises ConfigError if the optimizer trains a parameter that is not mixed."""
    known = {id(parameter) for parameter in mixed}
    for group in optimizer.param_groups:
        for name, parameter in named(group):
            if parameter.requires_grad and parameter.numel() and id(parameter) not in known:
                raise ConfigError(
                    f"{name} is trained since Gossip was created, because it was frozen before or has replaced another "
                    "one, so each rank would train its own; call `finish` on all ranks, and create a new Gossip"
                )


def check_one_way(topology: str, *, codec: str, gamma: float, consensus_target: float | None) -> None:
    """Raises ConfigError for an argument that a topology with one-way edges does not take."""
    if codec not in CODECS:
        raise ConfigError(
            f"topology {topology!r} has one-way edges, for which there are the codecs {', '.join(CODECS)}; "
            f"this is {codec!r}"
        )
    if gamma != 1:
        raise ConfigError(f"topology {topology!r} has one-way edges, where gamma must be 1; it is {gamma:g}")
    if consensus_target is not None:
        raise ConfigError(f"topology {topology!r} has one-way edges, for which there is no consensus_target yet")


def trained(model: nn.Module, optimizer: Optimizer) -> list[tuple[str, Tensor]]:
    """The parameters to mix, by name; tied ones once. Raises ConfigError for one that is not the model's."""
    named = {id(parameter): (name, parameter) for name, parameter in reversed(list(model.named_parameters()))}
    stepped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if any(id(parameter) not in named for parameter in stepped):
        raise ConfigError(
            "the optimizer has parameters that are not the model's; give Gossip one module that has all of them"
        )
    chosen = {id(parameter) for parameter in stepped if parameter.requires_grad and parameter.numel()}
    if not chosen:
        raise ConfigError("the optimizer has no parameter to train")
    return [(name, parameter) for name, parameter in model.named_parameters() if id(parameter) in chosen]


def shard_of(parameters: Sequence[tuple[str, Tensor]], group: dist.ProcessGroup | None) -> dict[str, str]:
    """Which shards this rank holds, as a setting that all ranks of the group must share; empty if its parameters are
    whole. Raises ConfigError if the group cannot be the ranks that hold the same ones at all sites."""
    mesh = mesh_of("Gossip", parameters)
    if mesh is None:
        return {}
    check_between_sites("Gossip", mesh, group)
    if len(dist.get_process_group_ranks(mesh.get_group())) == dist.get_world_size():
        raise ConfigError("the parameters are sharded over all ranks, so there is no other site to gossip with")
    return {"shard": f"{mesh.get_local_rank()} of {mesh.size()}"}


def described(model: nn.Module, parameters: Sequence[tuple[str, Tensor]]) -> dict[str, str]:
    """The settings that all ranks must share, with names for errors."""
    mixed = {name for name, _ in parameters}
    found = {
        f"parameter {name}": f"{list(tensor.shape)} {tensor.dtype}{'' if name in mixed else ', frozen'}"
        for name, tensor in model.named_parameters()
    }
    return found | {f"buffer {name}": f"{list(tensor.shape)} {tensor.dtype}" for name, tensor in model.named_buffers()}


STATE_VERSION = 4
FORM = "form"
"""The key of a state's own form."""


def with_form(state: Mapping[str, Any]) -> dict[str, Any]:
    saved = {name: value for name, value in state.items() if name != FORM}
    return saved | {FORM: hashlib.sha256(repr(_form_of(saved)).encode()).hexdigest()}


def why_unreadable(state: object) -> str | None:
    """Why this is not a state of Gossip, or not as it was saved."""
    if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION:
        found = state.get("version") if isinstance(state, Mapping) else type(state).__name__
        return f"this is not a state of Gossip that this version reads: {found!r}"
    if with_form(state)[FORM] != state.get(FORM):
        return "the state is damaged: it is not as it was saved; load those of another save on all ranks"
    return None


def _form_of(value: object) -> Any:
    """Keys and types, and dtypes and shapes of tensors, without the numbers."""
    if isinstance(value, Tensor):
        return str(value.dtype), list(value.shape)
    if isinstance(value, Mapping):
        return [(repr(key), _form_of(value[key])) for key in sorted(value, key=repr)]
    if isinstance(value, list | tuple):
        return [_form_of(one) for one in value]
    return type(value).__name__


def checksum(tensors: Sequence[Tensor]) -> int:
    """Differs if a bit of the tensors differs."""
    found = 0
    for tensor in tensors:
        found = zlib.crc32(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data, found)
    return found
