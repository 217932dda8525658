"""Sets the number of threads for replaying a run."""

from __future__ import annotations

from pathlib import Path

import torch

from thinwire_coordinator.hall.torch_threads import default_threads
from thinwire_proto.contract import parse_contract
from thinwire_proto.errors import ContractError
from thinwire_proto.exact.tiles import layout_of


def set_threads(state_dir: Path, wanted: int | None) -> None:
    """Set the number of torch threads to `wanted`, or, if None, to the default for the run in a state directory."""
    torch.set_num_threads(wanted or default_threads(_parameters(state_dir), torch.get_num_threads()))


def _parameters(state_dir: Path) -> int:
    try:
        return layout_of(parse_contract((state_dir / "contract.json").read_bytes()).parameters).parameters
    except (OSError, ContractError):
        return 0  # opening the state directory reports the error
