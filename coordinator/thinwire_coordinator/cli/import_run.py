"""The command `thinwire-coordinator import`."""

from __future__ import annotations

import shlex
from pathlib import Path

from pydantic_core import from_json

from thinwire_coordinator.hall.ledger.state_directory import create_state, is_state, lock_state, open_state
from thinwire_coordinator.planning.problems import read_run
from thinwire_proto.contract import RunSpec
from thinwire_proto.data.json_tokenizer import TOKENIZER_FILE
from thinwire_proto.errors import ConfigError
from thinwire_proto.task import Tokenizer


def import_run(weights: Path, run_file: Path | None, state_dir: Path, bodies: str | None) -> None:
    """Create a run whose first state are the weights in a folder, in the layout of transformers. `serve` continues it.

    Raises ConfigError, and then there is no run.
    """
    if not weights.is_dir():
        raise ConfigError(f"{weights}: is not a folder; give one with config.json and safetensors files")
    run = read_run(run_file) if run_file else RunSpec()
    with lock_state(state_dir):
        if is_state(state_dir):
            raise ConfigError(f"{state_dir}: holds a run already; give another --state-dir")
        create_state(state_dir, run, bodies, weights=weights)
    state = open_state(state_dir, read_only=True)
    replica = state.load_snapshot(0)
    print(f"{replica.layout.parameters:,} parameters read from {weights}; contract {state.contract.hash.hex()}")
    if _has_other_tokenizer(weights, state.data.tokenizer):
        print("warning: the folder's tokenizer is not that of the run's data, so the model knows none of these tokens")
    print(f"start the run with: {shlex.join(['thinwire-coordinator', 'serve', '--state-dir', str(state_dir)])}")
    state.close()


def _has_other_tokenizer(weights: Path, ours: Tokenizer | None) -> bool:
    """Whether the folder has a tokenizer with another vocabulary than that of the run."""
    theirs = _tokenizer_in(weights)
    if not theirs or ours is None:
        return False  # in another format, or the model is not of text
    return _vocabulary(theirs) != _vocabulary(ours.files().get(TOKENIZER_FILE, b"{}"))


def _tokenizer_in(weights: Path) -> bytes:
    """The tokenizer's file of a folder; empty if there is none."""
    try:
        return (weights / TOKENIZER_FILE).read_bytes()
    except OSError:
        return b""


def _vocabulary(tokenizer: bytes) -> object:
    try:
        return from_json(tokenizer)["model"]["vocab"]
    except (ValueError, KeyError, TypeError):
        return None
