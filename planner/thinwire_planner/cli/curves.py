"""Reads the curves of `make science` from its folder of runs, one JSON file a run."""

from __future__ import annotations

import json
from pathlib import Path

from thinwire_planner.choosing.to_loss import Curve
from thinwire_proto.errors import ConfigError

FILES_MAX = 10_000
FILE_BYTES_MAX = 16 * 1024 * 1024


def read_curves(folder: Path) -> dict[str, Curve]:
    """The curve of each arm: of its runs with the most tokens, the one with the least loss. Raises ConfigError."""
    files = sorted(folder.glob("*.json"))[:FILES_MAX]
    if not files:
        raise ConfigError(f"{folder}: has no runs; give the folder that `make science` wrote, docs/convergence/runs")
    best: dict[str, tuple[tuple[float, float], Curve]] = {}
    for path in files:
        try:
            if path.stat().st_size > FILE_BYTES_MAX:
                raise ValueError(f"is larger than {FILE_BYTES_MAX} bytes")
            run = json.loads(path.read_text(encoding="utf-8"))
            arm, tokens, loss = str(run["run"]["arm"]), float(run["run"]["tokens"]), float(run["loss"])
            curve = [(float(at), float(reached)) for at, reached in run["curve"]] + [(tokens, loss)]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path}: is not a run of `make science`: {error!r}; remove it") from None
        order = (-tokens, loss)
        if arm not in best or order < best[arm][0]:
            best[arm] = (order, curve)
    return {arm: curve for arm, (_, curve) in best.items()}
