"""Checks of what a script gives to DeMo, of states that it loads, and of what its ranks must have alike."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from thinwire.placement import local
from thinwire.script import warn_script
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


RATE_TOLERANCE = 1e-6
"""Relative difference allowed between the learning rates of two ranks, whose cosines may differ."""
NO_RATE = 1e-12
"""At the end of a long cosine, rates are their own rounding. Below this, they move no parameter."""
DIFFERENCES_SHOWN = 4
STEPS_IN_A_ROW = 3
BYTES_LEAST = 32
"""A few parameters have so few components that ranks may well choose the same ones."""


BROADCAST = "rank 0 before the first step: for p in model.parameters(): torch.distributed.broadcast(p.data, 0)"
BROADCAST_SHARDS = (
    "the first site before the first step: for p in model.parameters(): "
    "torch.distributed.broadcast(p.detach().to_local(), group=process_group, group_src=0)"
)


def check_equal(agreements: Sequence[dict[str, Any]]) -> None:
    """Raise ConfigError with the differences of the ranks' settings and parameters, as they describe them by name."""
    first, *others = agreements
    found = [
        f"{name}: {ours} on rank 0, {theirs} on rank {rank}"
        for rank, other in enumerate(others, 1)
        for name, ours, theirs in _differences(first, other)
    ]
    if found and all(line.startswith("parameters: ") for line in found):
        raise ConfigError(
            "the ranks do not start from the same parameters; use one seed on all ranks, or broadcast those of "
            + (BROADCAST_SHARDS if "site" in first else BROADCAST)
        )
    if found:
        more = f"; and {len(found) - DIFFERENCES_SHOWN} more" if len(found) > DIFFERENCES_SHOWN else ""
        raise ConfigError(f"the ranks' optimizers differ: {'; '.join(found[:DIFFERENCES_SHOWN])}{more}")


def check_equal_rates(rates: Sequence[Sequence[Sequence[float]]]) -> None:
    """Raise ConfigError if rates differ by more than rounding, because the ranks then run different schedules.

    rates: by rank and param group, learning rate and weight decay."""
    for rank, theirs in enumerate(rates):
        for number, pairs in enumerate(zip(rates[0], theirs, strict=True)):
            for name, a, b in zip(("lr", "weight_decay"), *pairs, strict=True):
                if not math.isclose(a, b, rel_tol=RATE_TOLERANCE, abs_tol=NO_RATE):
                    raise ConfigError(
                        f"the {name} of param group {number} is {a} on rank 0 and {b} on rank {rank}; it must be equal "
                        "on all ranks in each step, so a schedule must not depend on anything local to a rank"
                    )


def differing_rates(most: Sequence[float], least: Sequence[float]) -> str:
    """The difference among the rates of the ranks of a site, in words; empty if there is none.

    most, least: of all ranks; by param group, learning rate and weight decay in turn."""
    for number, (high, low) in enumerate(zip(most, least, strict=True)):
        if not math.isclose(high, low, rel_tol=RATE_TOLERANCE, abs_tol=NO_RATE):
            name = ("lr", "weight_decay")[number % 2]
            return f"the {name} of param group {number // 2} is {low} on one rank of a site, and {high} on another"
    return ""


def _differences(first: dict[str, Any], other: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any, Any]]:
    for name in [*first, *(name for name in other if name not in first)]:
        ours, theirs = first.get(name, "none"), other.get(name, "none")
        if isinstance(ours, dict) and isinstance(theirs, dict):
            yield from _differences(ours, theirs, f"{path}{name}, ")
        elif ours != theirs:
            yield f"{path}{name}", ours, theirs


class EqualPayloads:
    """Warns once if all ranks send the same several times in a row, which shows that their gradients are not local.

    Ranks with gradients of their own do not choose the same components in each of these steps. They always do if
    something averages the gradients, as DistributedDataParallel does, or if all ranks draw the same samples. The loss
    falls all the same, and all ranks stay equal, so nothing else shows it."""

    def __init__(self) -> None:
        self._steps = 0
        self._warned = False

    def see(self, payloads: Sequence[dict[int, bytes]]) -> None:
        """payloads: of one step, by rank; for each the bytes of its param groups."""
        first, *others = payloads
        enough = bool(others) and sum(map(len, first.values())) >= BYTES_LEAST
        self._steps = self._steps + 1 if enough and all(other == first for other in others) else 0
        if self._steps == STEPS_IN_A_ROW and not self._warned:
            self._warned = True
            warn_script(
                f"all ranks have sent the same components in {STEPS_IN_A_ROW} steps in a row, so they have the same "
                "gradients: either something averages these, as DistributedDataParallel does without no_sync, or all "
                "ranks train on the same samples. docs/optimizer.md says how gradients stay local"
            )
