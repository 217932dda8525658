"""The sinks of one coordinator process: check, begin, end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from thinwire_coordinator.hall.observe import definitions
from thinwire_coordinator.hall.observe.metrics import family
from thinwire_coordinator.hall.observe.sinks.memory import Continued, Fold, Memory, Totals, recall, totals_at
from thinwire_coordinator.hall.observe.sinks.tensorboard import TensorBoard, prepare_folder
from thinwire_coordinator.hall.observe.sinks.wandb import WeightsAndBiases, check_login
from thinwire_coordinator.hall.observe.sinks.worker import Point, Sink, SinkWorker
from thinwire_coordinator.hall.run import Run
from thinwire_proto import limits
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ConfigError

TENSORBOARD, WANDB = "tensorboard", "wandb"
MODULES = {TENSORBOARD: "tensorboard", WANDB: "wandb"}
"""The package that each sink needs. The extras have the names of the sinks."""
OUTCOMES = ("written", "dropped", "failed")
CONTRACT_DIGITS = 16


@dataclass(frozen=True)
class SinkSettings:
    """The target of each sink; None: there is no such sink."""

    tensorboard: Path | None = None
    wandb: str | None = None


class Sinks(Collector):
    """All sinks. `collect` gives their counts to Prometheus, 0 for those that are not there."""

    def __init__(self, settings: SinkSettings, state_dir: Path) -> None:
        self._settings = settings
        self._folder = state_dir / "sinks"
        self._curves: list[SinkWorker] = []

    def check(self) -> None:
        """Raise ConfigError if a sink cannot work: a package is missing, a folder cannot be made, nobody is logged in.

        Contacts no server, because a run does not depend on one.
        """
        for name, module in MODULES.items():
            if getattr(self._settings, name) is not None and not _is_installed(module):
                raise ConfigError(f"--{name} needs a package that is not installed: pip install 'thinwire[{name}]'")
        if self._settings.tensorboard is not None:
            prepare_folder(self._settings.tensorboard)
        if self._settings.wandb is not None:
            check_login()

    def begin(self, run: Run, recalled: tuple[dict[str, Memory], Totals]) -> None:
        """Watch the swarm. recalled: what `recall` has read."""
        (memories, before), settings = recalled, self._settings
        sinks: dict[str, Sink] = {}
        if settings.tensorboard is not None:
            sinks[TENSORBOARD] = TensorBoard(settings.tensorboard)
        if settings.wandb is not None:
            described = _described(run.view.contract)
            sinks[WANDB] = WeightsAndBiases(settings.wandb, memories[WANDB], self._folder, described)
        for name, sink in sinks.items():
            self._curves.append(SinkWorker(name, Continued(sink, memories[name])))
        if self._curves:
            run.events.watchers.append(Fold(run.view.counts, before, self._give).watch)
        for worker in self._curves:
            worker.start()

    def recall(self, run: Run) -> tuple[dict[str, Memory], Totals]:
        """What the sinks have written in earlier terms, and the totals of those. Raises LedgerError.

        For a worker thread, because it may read the ledger."""
        settings, found = self._settings, {}
        for name, target in ((TENSORBOARD, settings.tensorboard), (WANDB, settings.wandb)):
            if target is not None:
                whole = str(target.resolve()) if isinstance(target, Path) else target
                found[name] = recall(self._folder / f"{name}.json", whole)
        ledger, context = run.state.watch_ledger, run.state.tokens_a_sample
        return found, totals_at(ledger.step, [memory.totals for memory in found.values()], ledger, context)

    async def close(self) -> None:
        """Write what is left, as far as that takes at most SINKS_CLOSE_S."""
        workers, deadline = self._curves, time.monotonic() + limits.SINKS_CLOSE_S
        for worker in workers:
            worker.close()
        for worker in workers:
            await asyncio.get_running_loop().run_in_executor(None, worker.join, deadline)

    def collect(self) -> Iterable[Metric]:
        workers = {worker.name: worker for worker in self._curves}
        items = {(name, how): getattr(workers.get(name), how, 0) for name in MODULES for how in OUTCOMES}
        yield family(definitions.SINK_ITEMS, items)

    def _give(self, point: Point) -> None:
        for worker in self._curves:
            worker.offer(point)


def _is_installed(module: str) -> bool:
    with contextlib.suppress(ModuleNotFoundError):  # a parent package is missing
        return find_spec(module) is not None
    return False


def _described(contract: Contract) -> dict[str, Any]:
    """The contract as JSON values, without the list of its tensors."""
    described: dict[str, Any] = json.loads(contract.written)
    return {section: value for section, value in described.items() if section != "parameters"}
