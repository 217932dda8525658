"""The state directory of a run with the smallest model there is: for benchmarks that train nothing."""

from __future__ import annotations

from pathlib import Path

from thinwire_coordinator.hall.ledger.state_directory import create_state
from thinwire_proto.contract import RunSpec

MODEL = {"width": 2, "layers": 1, "heads": 1, "hidden": 2, "context": 8}


def make_small_run(folder: Path) -> None:
    create_state(folder, RunSpec.model_validate({"model": MODEL}))
