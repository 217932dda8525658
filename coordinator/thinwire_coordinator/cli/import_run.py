"""The command `thinwire-coordinator import`."""

from __future__ import annotations

import shlex
from contextlib import closing
from pathlib import Path

from pydantic_core import from_json

from thinwire_coordinator.export.folder import MARK
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.ledger.creation import create_state
from thinwire_coordinator.hall.ledger.state_directory import is_state, lock_state, open_state
from thinwire_coordinator.planning.problems import read_run_file
from thinwire_proto.contract import RunSpec
from thinwire_proto.contract.contract import ANCESTORS_MAX, Lineage
from thinwire_proto.data.json_tokenizer import TOKENIZER_FILE
from thinwire_proto.errors import ConfigError
from thinwire_proto.task import Tokenizer


def import_run(weights: Path, run_file: Path | None, state_dir: Path, bodies: str | None) -> None:
    """Create a run whose first state are the weights in a folder, in the layout of transformers. `serve` continues it.

    Raises ConfigError, and then there is no run.
    """
    if not weights.is_dir():
        raise ConfigError(f"{weights}: is not a folder; give one with config.json and safetensors files")
    run, planned = read_run_file(run_file) if run_file else (RunSpec(), ())
    with lock_state(state_dir):
        if is_state(state_dir):
            raise ConfigError(f"{state_dir}: holds a run already; give another --state-dir")
        with closing(AccessStore(state_dir)) as store:
            store.amendments.plan(planned)
        create_state(state_dir, run, bodies, weights=weights, parent=_parent_in(weights), planned=planned)
    state = open_state(state_dir, read_only=True)
    replica = state.load_snapshot(0)
    print(f"{replica.layout.parameters:,} parameters read from {weights}; contract {state.contract.hash.hex()}")
    if (lineage := state.contract.lineage) is not None:
        print(f"they are those of step {lineage.step} of the run with contract {lineage.contract}")
    if _has_other_tokenizer(weights, state.data.tokenizer):
        print("warning: the folder's tokenizer is not that of the run's data, so the model knows none of these tokens")
    print(f"start the run with: {shlex.join(['thinwire-coordinator', 'serve', '--state-dir', str(state_dir)])}")
    state.close()


def _parent_in(weights: Path) -> Lineage | None:
    """The run that an exported folder says it is from."""
    try:
        about = from_json((weights / MARK).read_bytes())
        older = about.get("parent") or {}
        known = [older["contract"], *older["ancestors"]] if older else []
        return Lineage(
            contract=about["contract"],
            step=about["step"],
            fingerprint=about["fingerprint"],
            ancestors=tuple(known[:ANCESTORS_MAX]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


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
