"""Reads the curves of `make science` from its file of results: one line of JSON a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

from thinwire_planner.choosing.choice import Curve
from thinwire_proto.errors import ConfigError

FILE_BYTES_MAX = 256 * 1024 * 1024


def read_curves(path: Path, nodes: int) -> dict[str, Curve]:
    """The curve of each arm: of its runs with the most tokens, that whose number of nodes is nearest to `nodes`; of
    several such runs, the one with the least loss.

    Only runs of one model, text and global batch can be compared: of the size that most arms have. Raises
    ConfigError."""
    lines = _lines(path)
    if not lines:
        raise ConfigError(f"{path}: has no runs; give the file that `make science` wrote, docs/convergence/runs.jsonl")
    by_size: dict[str, dict[str, tuple[Order, Curve]]] = {}
    for number, line in enumerate(lines, start=1):
        size, arm, order, curve = _read(line, f"{path}:{number}", nodes)
        best = by_size.setdefault(size, {})
        if arm not in best or order < best[arm][0]:
            best[arm] = (order, curve)
    of_most = max(by_size.values(), key=len)
    return {arm: curve for arm, (_, curve) in of_most.items()}


Order = tuple[float, float, float]
"""The place of a run among those of its arm: by tokens, number of nodes, and loss."""


def _lines(path: Path) -> list[str]:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise ConfigError(f"{path}: is larger than {FILE_BYTES_MAX} bytes")
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}; give the file runs.jsonl of `make science`") from None


def _read(line: str, where: str, nodes: int) -> tuple[str, str, Order, Curve]:
    """A run's size and arm, its place among the runs of that arm, and its curve."""
    try:
        run = json.loads(line)
        size = json.dumps(run["run"].get("size"), sort_keys=True)
        arm, tokens, loss = str(run["run"]["arm"]), float(run["run"]["tokens"]), float(run["loss"])
        away = abs(math.log(float(run["run"]["nodes"]) / nodes))
        points = [*((float(at), float(reached)) for at, reached in run["curve"]), (tokens, loss)]
        curve = [point for point in points if point[0] > 0]  # a loss before training is no point of a logarithmic scale
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{where}: is not a run of `make science`: {error!r}; remove the line") from None
    return size, arm, (-tokens, away, math.inf if math.isnan(loss) else loss), curve  # one that diverged is the worst
