"""Functions that make optimizers and schedules for `DecentralizedDataParallel`, with decent-dp's names and defaults.

In decent-dp, weights are not decayed, and biases and the parameters of batch norms are. That is the wrong way round;
here `inverted=True` asks for it.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from thinwire.steps.accum_adam import AccumAdam, AccumAdamW

NamedTensors = list[tuple[str, Tensor]]
SMALL = re.compile(r"(^|[._])(bn\d*|bias)($|[._])")
"""A part of the names of biases and of what batch norms learn. Every name with `bn` in it, as in the published code,
would be of a subnet too."""
ADAM_DECAY = 1 / 32768
ADAMW_DECAY = 0.1


def optim_fn_adam(params: NamedTensors, **settings: Any) -> Optimizer:
    """Adam; settings: lr, beta1, beta2, eps, weight_decay, inverted."""
    return _make(torch.optim.Adam, params, ADAM_DECAY, **settings)


def optim_fn_adamw(params: NamedTensors, **settings: Any) -> Optimizer:
    """AdamW; settings: as of `optim_fn_adam`."""
    return _make(torch.optim.AdamW, params, ADAMW_DECAY, **settings)


def optim_fn_accum_adam(params: NamedTensors, accum_iter: int = 4, **settings: Any) -> Optimizer:
    """AccumAdam; settings: as of `optim_fn_adam`."""
    return _make(AccumAdam, params, ADAM_DECAY, accum_iter=accum_iter, **settings)


def optim_fn_accum_adamw(params: NamedTensors, accum_iter: int = 4, **settings: Any) -> Optimizer:
    """AccumAdamW; settings: as of `optim_fn_adam`."""
    return _make(AccumAdamW, params, ADAMW_DECAY, accum_iter=accum_iter, **settings)


def lr_scheduler_fn_cosine_with_warmup(
    optimizer: Optimizer, t_max: int, t_warmup: int, cosine_eta_min: float = 1e-6, warmup_decay: float = 0.01
) -> LRScheduler:
    """A linear warm-up of t_warmup steps from warmup_decay, then a cosine of t_max steps down to cosine_eta_min."""
    cosine = CosineAnnealingLR(optimizer, T_max=t_max, eta_min=cosine_eta_min)
    warmup = LinearLR(optimizer, start_factor=warmup_decay, total_iters=t_warmup)
    return SequentialLR(optimizer, schedulers=[warmup, cosine], milestones=[t_warmup])


def _make(
    kind: type[Optimizer],
    params: NamedTensors,
    decay_default: float,
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    weight_decay: float | None = None,
    inverted: bool = False,
    **settings: Any,
) -> Optimizer:
    decay = decay_default if weight_decay is None else weight_decay
    small = [tensor for name, tensor in params if SMALL.search(name)]
    large = [tensor for name, tensor in params if not SMALL.search(name)]
    groups = [
        {"params": large, "weight_decay": 0.0 if inverted else decay},
        {"params": small, "weight_decay": decay if inverted else 0.0},
    ]
    make: Any = kind
    made: Optimizer = make([group for group in groups if group["params"]], betas=(beta1, beta2), **settings)
    return made
