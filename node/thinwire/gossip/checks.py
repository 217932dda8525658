"""Checks the arguments that a script gives to `Gossip`, before the ranks meet."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import timedelta
from numbers import Real

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from thinwire.whole_parameters import named, refuse_partial
from thinwire_proto.errors import ConfigError
from thinwire_proto.gossip.iteration import SLACK_MAX
from thinwire_proto.gossip.push_sum import CODECS

PATIENCE_MAX = timedelta(days=30)
"""gloo and threads count a wait in 64 bits of nanoseconds."""


def check_names(**given: object) -> None:
    """Raises ConfigError for one that is no string."""
    for name, value in given.items():
        if not isinstance(value, str):
            raise ConfigError(f"{name} must be a name, such as those in docs/decentralized.md; it is {value!r}")


def check_unwrapped(model: nn.Module, optimizer: Optimizer, mixed: Iterable[Tensor] = ()) -> None:
    """Raises ConfigError for what a framework has wrapped, sharded or not yet filled with values.

    mixed: parameters that must still be the model's.
    """
    refuse_partial("Gossip", [*model.named_parameters(), *model.named_buffers()])
    for group in optimizer.param_groups:
        refuse_partial("Gossip", named(group))
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
            "nobody trains; create optimizer and Gossip last, for a model whose parameters are whole on each rank"
        )


def check_settings(
    *,
    gamma: float,
    gradient_pull: float,
    every: int,
    slack: int,
    patience_s: float,
    per_host: int | None,
    seed: int,
    consensus_target: float | None,
) -> None:
    """Raises ConfigError for an argument of `Gossip` that cannot be."""
    if not (isinstance(gamma, Real) and 0 < gamma <= 1):
        raise ConfigError(f"gamma must be above 0, and at most 1; it is {gamma!r}")
    if not (isinstance(gradient_pull, Real) and 0 <= gradient_pull <= 1):
        raise ConfigError(f"gradient_pull must be 0 to 1; it is {gradient_pull!r}")
    if not (isinstance(every, int) and every >= 1):
        raise ConfigError(f"every must be a whole number, 1 or more; it is {every!r}")
    if not (isinstance(slack, int) and 0 <= slack <= SLACK_MAX):
        raise ConfigError(f"slack must be a whole number, 0 to {SLACK_MAX}; it is {slack!r}")
    if not (isinstance(patience_s, Real) and 0 < patience_s <= PATIENCE_MAX.total_seconds()):
        raise ConfigError(
            f"patience_s must be above 0, and at most {PATIENCE_MAX.total_seconds():.0f}; it is {patience_s!r}"
        )
    if not (per_host is None or (isinstance(per_host, int) and per_host >= 1)):
        raise ConfigError(f"per_host must be a whole number, 1 or more; it is {per_host!r}")
    if not isinstance(seed, int):
        raise ConfigError(f"seed must be a whole number; it is {seed!r}")
    target = consensus_target
    if not (target is None or (isinstance(target, Real) and 0 < target < math.inf)):
        raise ConfigError(f"consensus_target must be above 0 steps; it is {target!r}")


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
