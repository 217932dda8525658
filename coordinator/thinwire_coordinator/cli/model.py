"""Reads the model of a step from a state directory, with as many threads as it needs."""

from __future__ import annotations

from pathlib import Path

import torch

from thinwire_coordinator.gossip.ledger_rows import has_no_centre, state_at_head, trained
from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_coordinator.hall.torch_threads import default_threads
from thinwire_coordinator.star.replay import no_snapshot, replica_at_head, replica_at_step
from thinwire_proto.contract import parse_contract
from thinwire_proto.errors import ConfigError, ContractError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import layout_of


def replica_at(folder: Path, step: int | None) -> Replica:
    """The replica at a step (None: at the head), replayed from the newest usable snapshot at or before that step.

    Raises ConfigError if the step does not exist or is no longer kept, or LedgerError.
    """
    return replica_of(open_state(folder, read_only=True), step)


def replica_of(state: RunState, step: int | None) -> Replica:
    """The same for an open state directory."""
    if has_no_centre(state.contract):
        return _final_mean(state, step)
    if step is None:
        return replica_at_head(state)
    if not 0 <= step <= state.ledger.step:
        raise ConfigError(f"there is no step {step}: the ledger holds steps 0 to {state.ledger.step}")
    snapshots = state.snapshot_steps()
    if not snapshots:
        raise no_snapshot(state)
    if step < snapshots[0]:
        raise ConfigError(f"step {step} is no longer kept: the oldest snapshot is that of step {snapshots[0]}")
    return replica_at_step(state, step)


def _final_mean(state: RunState, step: int | None) -> Replica:
    """The final mean of a run without a centre, or its first state, if step 0 is asked for. step: an iteration."""
    if step == 0:
        return state.load_snapshot(0)
    mean = state_at_head(state)
    if mean.step == 0:
        raise ConfigError(
            "this run has no centre, and its model is the mean of all nodes at the end; it is not complete yet; "
            "--step 0 gives the first state"
        )
    end = trained(state.contract, mean.step)
    if step not in (None, end):
        raise ConfigError(
            f"there is no model of iteration {step}: a run without a centre has its first state, --step 0, and the "
            f"mean at its end, --step {end}"
        )
    return mean


def set_threads(state_dir: Path, wanted: int | None) -> None:
    """Set the number of torch threads to `wanted`, or, if None, to the default for the run in a state directory."""
    torch.set_num_threads(wanted or default_threads(_parameters(state_dir), torch.get_num_threads()))


def _parameters(state_dir: Path) -> int:
    try:
        return layout_of(parse_contract((state_dir / "contract.json").read_bytes()).parameters).parameters
    except (OSError, ContractError):
        return 0  # opening the state directory reports the error
