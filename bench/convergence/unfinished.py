"""How far an unfinished run is, in a file, so that another process goes on with the same bits."""

from __future__ import annotations

import copyreg
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch

from bench.convergence.method import Method, NodeTraffic
from bench.convergence.problem import Problem

copyreg.pickle(WeakSet, lambda _: (WeakSet, ()))
"""A replica has one, of snapshots that are being written; a run writes none."""


@dataclass
class Training:
    """A run so far. settings: what a later process must have alike. rounds: so many are done."""

    settings: dict[str, Any]
    problem: Problem
    method: Method
    rounds: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)
    traffic: NodeTraffic = field(default_factory=lambda: NodeTraffic(0.0, 0.0))
    seconds: float = 0.0


def save(training: Training, path: Path) -> None:
    """Write how far a run is, all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = path.with_suffix(".new")
    torch.save(training, whole)
    whole.replace(path)


def saved(path: Path, settings: dict[str, Any], device: torch.device) -> Training | None:
    """Read how far a run is. None, so that it begins again, without a file, if its settings differ, or if it cannot be
    read, such as after a change of the code."""
    if not path.exists():
        return None
    try:
        found: Training = torch.load(path, map_location=device, weights_only=False)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError, AttributeError, ImportError) as error:
        print(f"{path} cannot be read, so its run begins again: {error}", flush=True)
        return None
    return found if found.settings == settings else None
