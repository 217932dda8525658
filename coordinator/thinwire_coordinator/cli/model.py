"""Reads the model of a step from a state directory."""

from __future__ import annotations

from pathlib import Path

from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_coordinator.kinds import kind_of
from thinwire_proto.exact.replica import Replica


def replica_at(folder: Path, step: int | None) -> Replica:
    """The model at a step (None: the newest), replayed from the newest usable snapshot at or before that step.

    Raises ConfigError if the step does not exist or is no longer kept, or LedgerError.
    """
    return replica_of(open_state(folder, read_only=True), step)


def replica_of(state: RunState, step: int | None) -> Replica:
    """The same for an open state directory."""
    return kind_of(state.contract).model_at(state, step)
