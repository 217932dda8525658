"""The sink for Weights & Biases. Its own variables apply: WANDB_MODE=offline writes only into the state directory."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thinwire_coordinator.hall.observe.sinks.memory import Memory
from thinwire_coordinator.hall.observe.sinks.worker import BATCH_MAX, Point
from thinwire_proto import limits
from thinwire_proto.errors import ConfigError

AXIS = "step"
FLUSH_EVERY_S = 1.0
"""A coordinator that is killed loses at most the points of so long, offline too."""


class WeightsAndBiases:
    """Logs points to a run of `project`, against the axis `step`.

    memory: keeps the run's id, under which a restarted coordinator continues. folder: for the files of wandb. config:
    what describes the run, as JSON values.
    """

    def __init__(self, project: str, memory: Memory, folder: Path, config: Mapping[str, Any]) -> None:
        self._project = project
        self._memory = memory
        self._folder = folder
        self._config = config
        self._run: Any = None
        self._number = 0

    def write(self, points: Sequence[Point]) -> None:
        if self._run is None:
            self._run = self._begin()
        for point in points:
            self._run.log({AXIS: point.step, **point.values}, step=self._number)
            self._number += 1

    def close(self) -> None:
        if self._run is not None:
            self._run.finish()

    def _begin(self) -> Any:
        import wandb  # noqa: PLC0415 - slow, and an extra

        run = wandb.init(
            project=self._project,
            id=self._memory.run_id,
            resume="allow",
            dir=str(self._folder),
            config=dict(self._config),
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,
                disable_code=True,
                x_disable_stats=True,  # of the machine; /metrics has them
                x_transaction_log_flush_interval=FLUSH_EVERY_S,
                finish_timeout=limits.SINKS_CLOSE_S,
            ),
        )
        run.define_metric(AXIS)
        run.define_metric("*", step_metric=AXIS)
        # wandb's own numbers must ascend over restarts; a killed coordinator may have sent one batch more than it noted
        self._number = self._memory.written + BATCH_MAX if self._memory.written else 0
        return run


def check_login() -> None:
    """Raise ConfigError if wandb would ask for a key. Contacts no server."""
    import wandb  # noqa: PLC0415

    logging.getLogger("wandb").setLevel(logging.ERROR)
    if wandb.setup().settings.mode == "online" and not wandb.login(prompt=False, verify=False):
        raise ConfigError(
            "--wandb needs an API key: type `wandb login`, or set WANDB_API_KEY; or set WANDB_MODE=offline to keep the "
            "curves in the state directory, from where `wandb sync` sends them later"
        )
