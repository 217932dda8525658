"""Notes on disk how far the work is, so that a command that is interrupted and started again goes on from there."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from thinwire_common.files import replace_synced
from thinwire_coordinator.prepare.batches import Position
from thinwire_coordinator.prepare.held_out import Side, Split
from thinwire_coordinator.prepare.problems import Counts

VERSION = 3
"""Raised when readers find other documents in a file than before, too: a position would then mean another one."""
STATE_FILE = "state.json"


@dataclass
class Current:
    """The source that is being read. lengths: of its buckets on disk, which hold the documents before `position`."""

    position: Position
    lengths: list[int]
    total: Side


@dataclass
class Divided:
    """A source that is read. lengths: of its buckets on disk. beyond: keys in hexadecimal, see `beyond_share`."""

    lengths: list[int]
    split: Split
    beyond: list[str]
    counts: Counts


@dataclass
class Finished:
    """A source whose shards are written. source: its part of the manifest. left_out: see `Prepared`."""

    source: dict[str, Any]
    split: Split
    left_out: int


@dataclass
class Checkpoint:
    """The state of the work in a folder: all sources are read in turn, then the shards of each are written.

    inputs: a hash of the settings and of the files to read.
    """

    folder: Path
    inputs: str
    divided: list[Divided] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    current: Current | None = None

    def write(self) -> None:
        current = self.current and {
            "position": self.current.position,
            "lengths": self.current.lengths,
            "total": self.current.total,
        }
        lists = {name: [vars(each) for each in getattr(self, name)] for name in ("divided", "finished")}
        state = {"version": VERSION, "inputs": self.inputs, "current": current} | lists
        replace_synced(self.folder / STATE_FILE, json.dumps(state).encode())


def open_checkpoint(folder: Path, inputs: str) -> Checkpoint:
    """The state in a folder if it is of the same inputs and whole; otherwise an empty folder and a new state."""
    if (found := _read(folder, inputs)) is not None:
        return found
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    fresh = Checkpoint(folder, inputs)
    fresh.write()
    return fresh


def _read(folder: Path, inputs: str) -> Checkpoint | None:
    try:
        state = json.loads((folder / STATE_FILE).read_bytes())
        if state["version"] != VERSION or state["inputs"] != inputs:
            return None
        divided = [
            Divided(**each | {"split": _split(each), "counts": Counts(*each["counts"])}) for each in state["divided"]
        ]
        finished = [Finished(**each | {"split": _split(each)}) for each in state["finished"]]
        current = state["current"] and Current(
            _position(*state["current"]["position"]),
            state["current"]["lengths"],
            Side(*state["current"]["total"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Checkpoint(folder, inputs, divided, finished, current)


def _position(file: int, documents: int, counts: list[int]) -> Position:
    return Position(file, documents, Counts(*counts))


def _split(each: dict[str, Any]) -> Split:
    return Split(*(Side(*side) for side in each["split"]))
