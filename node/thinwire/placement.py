"""The placement of an optimizer's parameters: whole on each rank, or sharded by FSDP2 over the ranks of a site.

Anything else is refused: FSDP1, tensor parallelism, ZeRO-3, the device "meta". A shard looks like a small parameter,
so without these checks some shards would overwrite others, and torch's own errors would not name the cause.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from thinwire_proto.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor

FSDP_MARKS = ("_fsdp_flattened", "_is_flat_param")
"""Attributes that FullyShardedDataParallel gives to its parameters, with use_orig_params and without."""
ZERO_MARK = "ds_id"
"""The attribute that DeepSpeed's ZeRO-3 gives to a parameter which it has partitioned."""


def refuse_partial(what: str, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Raise ConfigError for the first tensor that is not whole on this rank.

    what: the class that refuses it, for the message. tensors: with the names that the message gives them."""
    for name, tensor in tensors:
        refuse_unready(what, name, tensor)
        if sharding := sharding_of(tensor):
            raise _sharded(what, f"{name} is {sharding}")


def refuse_unready(what: str, name: str, tensor: Tensor) -> None:
    """Raise ConfigError for a tensor that has no values yet; see `refuse_partial`."""
    if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
        raise ConfigError(
            f"{what} cannot take {name} before it has a shape: run a forward pass of the model once, then create {what}"
        )
    if tensor.is_meta:
        raise ConfigError(
            f'{what} cannot take {name}, which has no values because it is on the device "meta": call '
            f"model.to_empty and load or draw its weights, then create {what}"
        )


def refuse_replaced(what: str, parameters: Sequence[Tensor], remedy: str = "") -> None:
    """Raise ConfigError if FSDP has put shards in the place of these parameters. They are then in no module any
    more, so they have no gradient, while shards of the same shapes have some.

    For parameters that have no gradient. Looks at all objects of the process, which takes a fraction of a second.
    remedy: what to do, for the message."""
    sharded: set[torch.Size] = set()
    asked = {id(parameter) for parameter in parameters}
    for found in gc.get_objects():
        # `type` and not `isinstance`, which would ask proxies, and some of them import what they stand for
        if issubclass(type(found), nn.Module):
            of_module = found.__dict__.get("_parameters") or {}
            if any(id(parameter) in asked for parameter in of_module.values()):
                return  # another model is the one that was sharded
        is_parameter = issubclass(type(found), Tensor) and isinstance(found, nn.Parameter)
        if is_parameter and sharding_of(found) and found.grad is not None:
            sharded.update(getattr(found, "_shapes", [found.shape]))
    if sharded and all(parameter.shape in sharded for parameter in parameters):
        why = f"the model was sharded after {what} was created"
        raise ConfigError(f"{why}; {remedy}") if remedy else _sharded(what, why)


def named(group: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a param group, with names for messages."""
    names = group.get("param_names")  # only if the script gave the optimizer named parameters
    for at, parameter in enumerate(group["params"]):
        yield (names[at] if names else f"parameter {at}"), parameter


def sharding_of(tensor: Tensor) -> str:
    """In which way a tensor is sharded; empty if it is not."""
    if any(getattr(tensor, mark, False) is True for mark in FSDP_MARKS):
        return "a shard of FullyShardedDataParallel"
    if hasattr(tensor, ZERO_MARK):
        return "partitioned by DeepSpeed's ZeRO-3"
    return f"a {type(tensor).__name__}" if is_traceable_wrapper_subclass(tensor) else ""


def _sharded(what: str, why: str) -> ConfigError:
    return ConfigError(
        f"{what} does not work with FSDP, tensor parallelism or ZeRO-3 yet: {why}; leave the model unwrapped, so that "
        "each rank holds all parameters whole"
    )


def as_dtensor(tensor: Tensor) -> DTensor | None:
    """The tensor itself if it is a DTensor, else None."""
    if not is_traceable_wrapper_subclass(tensor):
        return None
    from torch.distributed.tensor import DTensor  # noqa: PLC0415 - takes a second, and few scripts need it

    return tensor if isinstance(tensor, DTensor) else None


def local(tensor: Tensor) -> Tensor:
    sharded = as_dtensor(tensor)
    return tensor if sharded is None else sharded.to_local()


def mesh_of(what: str, tensors: Iterable[tuple[str, Tensor]]) -> DeviceMesh | None:
    """The mesh over whose ranks all parameters are sharded; None if all are whole.

    what, tensors: as in `refuse_partial`. Raises ConfigError if they are neither."""
    first: tuple[str, DeviceMesh | None] | None = None
    for name, tensor in tensors:
        refuse_unready(what, name, tensor)
        sharded = as_dtensor(tensor)
        if sharded is None and (sharding := sharding_of(tensor)):
            raise _neither(what, f"{name} is {sharding}")
        mesh = None if sharded is None else _mesh_of(what, name, sharded)
        if first is None:
            first = name, mesh
        elif first[1] != mesh:
            raise _neither(what, f"{name} is {_how(mesh)}, and {first[0]} is {_how(first[1])}")
    return None if first is None else first[1]


def _mesh_of(what: str, name: str, tensor: DTensor) -> DeviceMesh:
    from torch.distributed.tensor import Replicate, Shard  # noqa: PLC0415 - as above

    mesh, placements = tensor.device_mesh, tensor.placements
    if placements == (Replicate(), Shard(0)):
        outer, inner = mesh.mesh_dim_names or ("0", "1")
        raise ConfigError(
            f"{name} is sharded over both dimensions of its mesh, and FSDP2 would average the gradients of all sites "
            f'before {what} sees them: use fully_shard(model, mesh=mesh["{inner}"]), and '
            f'{what}(…, process_group=mesh.get_group("{outer}"))'
        )
    if placements != (Shard(0),):
        raise _neither(what, f"{name} is a DTensor with the placements {placements}")
    return mesh


def _how(mesh: DeviceMesh | None) -> str:
    return "whole" if mesh is None else f"sharded over {mesh}"


def _neither(what: str, why: str) -> ConfigError:
    return ConfigError(
        f"{what} takes parameters that are all whole, or all sharded by fully_shard over the same mesh of one "
        f"dimension, and does not work with FSDP1, tensor parallelism or ZeRO-3: {why}"
    )


def check_between_sites(what: str, mesh: DeviceMesh, group: dist.ProcessGroup | None) -> None:
    """Raise ConfigError if `group` cannot be the ranks that hold the same shards at all sites, this one included. None:
    there is no other site."""
    here, everybody = dist.get_process_group_ranks(mesh.get_group()), dist.get_world_size()
    if group is None and len(here) < everybody:
        raise ConfigError(
            f"the parameters are sharded over {len(here)} of {everybody} ranks, so {what} has to know which ranks hold "
            "the same shards at other sites: give it process_group=mesh.get_group(…) of the mesh's outer dimension"
        )
    there = [dist.get_rank()] if group is None else dist.get_process_group_ranks(group)
    if set(here) & set(there) != {dist.get_rank()}:
        raise ConfigError(
            f"process_group has the ranks {there}, and this rank {dist.get_rank()} shares its parameters with {here}: "
            "an exchange is between sites; give it mesh.get_group(…) of the mesh's outer dimension"
        )
