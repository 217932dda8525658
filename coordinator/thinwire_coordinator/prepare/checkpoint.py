"""Notes on disk how far the work is, so that a command that is interrupted and started again goes on from there."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from thinwire_common.files import replace_synced
from thinwire_coordinator.prepare.batches import Position
from thinwire_coordinator.prepare.held_out import Side, Split
from thinwire_coordinator.prepare.packing import Packed
from thinwire_coordinator.prepare.problems import Counts
from thinwire_proto.data.manifest import Source

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
    """A source whose shards are written. source: its part of the manifest. left_out: documents that it does not train
    on, because another source holds them out. packed: its conversations."""

    source: Source
    split: Split
    left_out: int
    packed: Packed = field(default_factory=Packed)


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
        replace_synced(self.folder / STATE_FILE, _ADAPTER.dump_json(self))


_ADAPTER = TypeAdapter(Checkpoint)


def open_checkpoint(folder: Path, inputs: str) -> Checkpoint:
    """The state in a folder if it is of the same inputs and whole; otherwise an empty folder and a new state."""
    with suppress(OSError, ValueError):
        found = _ADAPTER.validate_json((folder / STATE_FILE).read_bytes())
        if found.inputs == inputs:
            found.folder = folder
            return found
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    fresh = Checkpoint(folder, inputs)
    fresh.write()
    return fresh
