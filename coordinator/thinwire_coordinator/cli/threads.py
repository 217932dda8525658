"""Chooses the number of threads for replaying a run.

On a busy machine, small parallel regions cost many times their work (`bench.costs.verify_threads`), so small models are
replayed on one thread.
"""

from __future__ import annotations

from pathlib import Path

import torch

from thinwire_proto.contract import parse_contract
from thinwire_proto.errors import ContractError
from thinwire_proto.exact.tiles import layout_of

LARGE = 8_000_000
"""Number of parameters from which all cores are used. An update of 8.4M parameters takes 27 ms on two idle cores, and
50 ms on one."""


def set_threads(state_dir: Path, wanted: int | None) -> None:
    """Set the number of torch threads to `wanted`, or, if None, to the default for the run in a state directory."""
    torch.set_num_threads(wanted or default_threads(_parameters(state_dir), torch.get_num_threads()))


def default_threads(parameters: int, cores: int) -> int:
    return cores if parameters >= LARGE else 1


def _parameters(state_dir: Path) -> int:
    try:
        return layout_of(parse_contract((state_dir / "contract.json").read_bytes()).parameters).parameters
    except (OSError, ContractError):
        return 0  # opening the state directory reports the error
