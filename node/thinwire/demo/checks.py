"""Checks of param groups of torch, and of states that DeMo loads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from thinwire.placement import local
from thinwire_proto.errors import ConfigError

SETTINGS_OF_STATE = ("values", "compression_chunk", "precondition")
"""A loaded state must have been made with the same values of these settings. All other settings are restored
from it."""


def trained_of(options: dict[str, Any]) -> list[Tensor]:
    """The trained parameters of a torch param group; tied ones appear once. Raises ConfigError."""
    trained = {id(tensor): tensor for tensor in options["params"] if tensor.requires_grad and tensor.numel()}
    for tensor in trained.values():
        if tensor.dtype != torch.float32:
            raise ConfigError(
                f"DeMo needs float32 parameters, but one is {str(tensor.dtype).removeprefix('torch.')}, where rounding "
                "may lose a step. Keep float32 masters: leave the model in float32, and use autocast"
            )
    if len({tensor.device for tensor in trained.values()}) > 1:
        raise ConfigError("all parameters of a param group must be on one device; make one param group for each device")
    return list(trained.values())


def rates_of(options: dict[str, Any]) -> tuple[float, float]:
    """Learning rate and weight decay. Raises ConfigError if one is no number."""
    for name in ("lr", "weight_decay"):
        if not isinstance(options[name], (Real, Tensor)):
            raise ConfigError(f"{name} must be a number; it is {options[name]!r}")
    return float(options["lr"]), float(options["weight_decay"])


def check_state(number: int, saved: dict[str, Any], options: dict[str, Any], state: dict[int, Any]) -> None:
    """Raises ConfigError."""
    for name in SETTINGS_OF_STATE:
        if name not in saved:
            raise ConfigError(f"this is not a state of DeMo: its param group {number} has no {name}")
        if saved[name] != options[name]:
            raise ConfigError(
                f"param group {number}: the state was made with {name}={saved[name]!r}, and the optimizer with "
                f"{options[name]!r}; create the optimizer with the setting of the state"
            )
    for index, (there, here) in enumerate(zip(saved["shapes"], options["shapes"], strict=False)):
        if there != here:
            raise ConfigError(f"parameter {index} of param group {number} is {there} in the state, and {here} here")
    known = [bool(state.get(key)) for key in saved["params"]]
    trained = {id(tensor) for tensor in trained_of(options)}
    for index, (there, tensor) in enumerate(zip(known, options["params"], strict=False)):
        if any(known) and there != (id(tensor) in trained):
            raise ConfigError(
                f"parameter {index} of param group {number} was {'trained' if there else 'frozen'} in the state, and "
                "is not here; set requires_grad as it was before loading"
            )


GRADIENT_MAX = 1e18
"""Beyond it the second moment would overflow and stay infinite."""


def gradient_of(parameter: Tensor, factor: float) -> Tensor:
    """`factor` times the gradient, or zeros in place of None: float32, contiguous, of this rank's part."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(local(parameter), memory_format=torch.contiguous_format)
    held = local(gradient)
    dense = (held.to_dense() if held.is_sparse else held).detach().float().contiguous()
    return dense if factor == 1 else dense * factor


def all_finite(gradients: Sequence[Tensor]) -> bool:
    """Whether all gradients are finite and below GRADIENT_MAX. Waits for the device once."""
    held = [gradient for gradient in gradients if gradient.numel()]
    if not held:
        return True
    device = held[0].device
    largest = [torch.linalg.vector_norm(gradient, math.inf).to(device) for gradient in held]
    return bool((torch.stack(largest) < GRADIENT_MAX).all())  # false for NaN
