"""Refuses parameters that a rank does not hold whole: those of FSDP, of tensor parallelism, of ZeRO-3, and on "meta".

The optimizers of this package compare, exchange and step whole parameters. A shard looks like a small parameter, so
without these checks some shards would overwrite others, and torch's own errors would not name the cause.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from thinwire_proto.errors import ConfigError

FSDP_MARKS = ("_fsdp_flattened", "_is_flat_param")
"""Attributes that FullyShardedDataParallel gives to its parameters, with use_orig_params and without."""
ZERO_MARK = "ds_id"
"""The attribute that DeepSpeed's ZeRO-3 gives to a parameter which it has partitioned."""


def refuse_partial(what: str, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Raise ConfigError for the first tensor that is not whole on this rank.

    what: the class that refuses it, for the message. tensors: with the names that the message gives them.
    """
    for name, tensor in tensors:
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            raise ConfigError(
                f"{what} cannot take {name} before it has a shape: run a forward pass of the model once, then create "
                f"{what}"
            )
        if tensor.is_meta:
            raise ConfigError(
                f'{what} cannot take {name}, which has no values because it is on the device "meta": call '
                f"model.to_empty and load or draw its weights, then create {what}"
            )
        if sharding := _sharding(tensor):
            raise _sharded(what, f"{name} is {sharding}")


def refuse_replaced(what: str, parameters: Sequence[Tensor]) -> None:
    """Raise ConfigError if FSDP has put shards in the place of these parameters. They are then no part of a model any
    more, so they have no gradient, while shards of the same shapes have some.

    For parameters that have no gradient. Looks at all objects of the process, which takes a fraction of a second.
    """
    sharded: set[torch.Size] = set()
    for found in gc.get_objects():
        # `type` and not `isinstance`, which would ask proxies, and some of them import what they stand for
        is_parameter = issubclass(type(found), Tensor) and isinstance(found, nn.Parameter)
        if is_parameter and _sharding(found) and found.grad is not None:
            sharded.update(getattr(found, "_shapes", [found.shape]))
    if sharded and all(parameter.shape in sharded for parameter in parameters):
        raise _sharded(what, f"the model was sharded after {what} was created")


def named(group: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a param group, with names for messages."""
    names = group.get("param_names")  # only if the script gave the optimizer named parameters
    for at, parameter in enumerate(group["params"]):
        yield (names[at] if names else f"parameter {at}"), parameter


def _sharding(tensor: Tensor) -> str:
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
