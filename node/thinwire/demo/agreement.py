"""What the ranks of a DeMo must have alike, and what they are told if they have not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from thinwire_proto.errors import ConfigError

RATE_TOLERANCE = 1e-6
"""Relative difference allowed between the learning rates of two ranks, whose cosines may differ."""
DIFFERENCES_SHOWN = 4


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
            "the ranks do not start from the same parameters; use one seed on all ranks, or broadcast those "
            "of rank 0 before the first step: for p in model.parameters(): torch.distributed.broadcast(p.data, 0)"
        )
    if found:
        more = f"; and {len(found) - DIFFERENCES_SHOWN} more" if len(found) > DIFFERENCES_SHOWN else ""
        raise ConfigError(f"the ranks' optimizers differ: {'; '.join(found[:DIFFERENCES_SHOWN])}{more}")


def check_equal_rates(rates: Sequence[Sequence[Sequence[float]]]) -> None:
    """Raise ConfigError if rates differ by more than rounding, because the ranks then run different schedules.

    rates: by rank and param group, learning rate and weight decay.
    """
    for rank, theirs in enumerate(rates):
        for number, pairs in enumerate(zip(rates[0], theirs, strict=True)):
            for name, a, b in zip(("lr", "weight_decay"), *pairs, strict=True):
                if not math.isclose(a, b, rel_tol=RATE_TOLERANCE):
                    raise ConfigError(
                        f"the {name} of param group {number} is {a} on rank 0 and {b} on rank {rank}; it must be equal "
                        "on all ranks in each step, so a schedule must not depend on anything local to a rank"
                    )


def _differences(first: dict[str, Any], other: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any, Any]]:
    for name in [*first, *(name for name in other if name not in first)]:
        ours, theirs = first.get(name, "none"), other.get(name, "none")
        if isinstance(ours, dict) and isinstance(theirs, dict):
            yield from _differences(ours, theirs, f"{path}{name}, ")
        elif ours != theirs:
            yield f"{path}{name}", ours, theirs
