"""Compares the sizes of a run's blobs with those in its contract and manifest, without reading the files.

Nodes check the hash of each blob that they fetch. So one that is damaged here fails on every volunteer's machine, and
looks like a fault there.
"""

from __future__ import annotations

from pathlib import Path

from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_proto.errors import Damaged
from thinwire_proto.task import task_of


def check_blobs(state: RunState) -> tuple[int, list[Path]]:
    """Return how many blobs have the right size, and those that are missing. Raises Damaged if one has another size."""
    right, missing = 0, []
    for blob in dict.fromkeys([*task_of(state.contract.model).blobs(), *state.data.blobs()]):
        path = state.blobs.folder / blob.hash
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            missing.append(path)
            continue
        if size != blob.size:
            raise Damaged(f"{path} is damaged: it has {size:,} bytes, and must have {blob.size:,}", restore="it")
        right += 1
    return right, missing


def check_complete(state: RunState) -> None:
    """Raise Damaged if a blob is missing or has another size, so that the coordinator cannot serve it."""
    _, missing = check_blobs(state)
    if len(missing) == 1:
        raise Damaged(f"{missing[0]} is missing", restore="it")
    if missing:
        raise Damaged(f"{missing[0]} and {len(missing) - 1:,} other blobs are missing", restore="them")
