"""Reads the curves of `make science` from its folder of runs, one JSON file a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

from thinwire_planner.choosing.to_loss import Curve
from thinwire_proto.errors import ConfigError

FILES_MAX = 10_000
FILE_BYTES_MAX = 16 * 1024 * 1024


def read_curves(folder: Path, nodes: int) -> dict[str, Curve]:
    """The curve of each arm: of its runs with the most tokens, that whose number of nodes is nearest to `nodes`; of
    several such runs, the one with the least loss.

    Only runs of one model, text and global batch can be compared: of the size that most arms have. Raises
    ConfigError."""
    files = sorted(folder.glob("*.json"))[:FILES_MAX]
    if not files:
        raise ConfigError(f"{folder}: has no runs; give the folder that `make science` wrote, docs/convergence/runs")
    by_size: dict[str, dict[str, tuple[Order, Curve]]] = {}
    for path in files:
        size, arm, order, curve = _read(path, nodes)
        best = by_size.setdefault(size, {})
        if arm not in best or order < best[arm][0]:
            best[arm] = (order, curve)
    of_most = max(by_size.values(), key=len)
    return {arm: curve for arm, (_, curve) in of_most.items()}


Order = tuple[float, float, float]
"""The place of a run among those of its arm: by tokens, number of nodes, and loss."""


def _read(path: Path, nodes: int) -> tuple[str, str, Order, Curve]:
    """A run's size and arm, its place among the runs of that arm, and its curve."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ValueError(f"is larger than {FILE_BYTES_MAX} bytes")
        run = json.loads(path.read_text(encoding="utf-8"))
        size = json.dumps(run["run"].get("size"), sort_keys=True)
        arm, tokens, loss = str(run["run"]["arm"]), float(run["run"]["tokens"]), float(run["loss"])
        away = abs(math.log(float(run["run"]["nodes"]) / nodes))
        points = [*((float(at), float(reached)) for at, reached in run["curve"]), (tokens, loss)]
        curve = [point for point in points if point[0] > 0]  # a loss before training is no point of a logarithmic scale
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: is not a run of `make science`: {error!r}; remove it") from None
    return size, arm, (-tokens, away, math.inf if math.isnan(loss) else loss), curve  # one that diverged is the worst
