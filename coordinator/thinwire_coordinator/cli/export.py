"""The command `thinwire-coordinator export`."""

from __future__ import annotations

import sys
from pathlib import Path

from thinwire_coordinator.cli.model import replica_of
from thinwire_coordinator.export.export import export_file, export_folder, is_file
from thinwire_coordinator.export.folder import check_free
from thinwire_coordinator.export.hub import check_push, push
from thinwire_coordinator.export.tokenizer_class import AUTO
from thinwire_coordinator.hall.ledger.state_directory import open_state
from thinwire_coordinator.kinds import kind_of
from thinwire_proto.errors import UsageError
from thinwire_proto.task import Task, task_of
from thinwire_proto.version import VERSION


def export(state_dir: Path, step: int | None, out: Path, merge: bool, push_to: str | None) -> None:
    """Write the model of a step to a file or a folder, and upload the folder. Raises ThinwireError."""
    if is_file(out) and (merge or push_to is not None):
        raise UsageError(f"--merge and --push need a folder, and {out} is one file; give --out FOLDER")
    if push_to is not None:
        check_push(push_to)
    if not is_file(out):
        check_free(out)
    state = open_state(state_dir, read_only=True)
    if merge and type(task_of(state.contract.model)).merged is Task.merged:
        print("--merge has no effect: this run trains no adapter", file=sys.stderr)
    replica = replica_of(state, step)
    if is_file(out):
        export_file(replica, out)
    else:
        opener = export_folder(state, replica, out, merge=merge)
        if opener != AUTO:
            print(
                f"open the tokenizer with transformers.{opener}, as README.md there shows: {AUTO} takes another class "
                "for this family of models, which would give other tokens",
                file=sys.stderr,
            )
    kind = kind_of(state.contract)
    at = f"{kind.unit} {kind.trained(state.contract, replica)}"
    print(f"{at}: {replica.layout.parameters:,} parameters written to {out}")
    if push_to is not None:
        print(f"uploaded: {push(out, push_to, f'{at}, exported by thinwire {VERSION}')}")
