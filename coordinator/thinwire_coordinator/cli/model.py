"""Reads the model of a step from a state directory."""

from __future__ import annotations

from pathlib import Path

import torch

from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_coordinator.hall.workers import default_threads
from thinwire_coordinator.kinds import kind_of
from thinwire_proto.contract import parse_contract
from thinwire_proto.errors import ContractError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import layout_of


def replica_at(folder: Path, step: int | None) -> Replica:
    """The model at a step (None: the newest), replayed from the newest usable snapshot at or before that step.

    Raises ConfigError if the step does not exist or is no longer kept, or LedgerError.
    """
    return replica_of(open_state(folder, read_only=True), step)


def replica_of(state: RunState, step: int | None) -> Replica:
    """The same for an open state directory."""
    return kind_of(state.contract).model_at(state, step)


def set_threads(state_dir: Path, wanted: int | None) -> None:
    """Set the number of torch threads to `wanted`, or, if None, to the default for the run in a state directory."""
    torch.set_num_threads(wanted or default_threads(_parameters(state_dir), torch.get_num_threads()))


def _parameters(state_dir: Path) -> int:
    try:
        return layout_of(parse_contract((state_dir / "contract.json").read_bytes()).parameters).parameters
    except (OSError, ContractError):
        return 0  # opening the state directory reports the error
