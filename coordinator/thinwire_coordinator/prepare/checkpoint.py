"""Notes on disk how far the work is, so that a command that is interrupted and started again goes on from there."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from thinwire_common.files import replace_synced
from thinwire_coordinator.prepare.batches import Position
from thinwire_coordinator.prepare.held_out import Side, Split
from thinwire_coordinator.prepare.packing import Packed
from thinwire_coordinator.prepare.problems import Counts
from thinwire_coordinator.prepare.sources import CLAIM_FILE, WORK_FOLDER
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE, Source
from thinwire_proto.errors import ConfigError

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


@contextmanager
def claimed(out: Path) -> Iterator[None]:
    """Make the folder for prepared data, and keep other runs of `prepare` out of it.

    Raises ConfigError if it holds prepared data already, holds files that `prepare` would delete and did not make, is
    in use, or cannot be written to.
    """
    claim = FileLock(out / CLAIM_FILE)
    try:
        _check_free(out)
        out.mkdir(parents=True, exist_ok=True)
        with suppress(NotImplementedError):  # some network file systems lock no files
            claim.acquire(blocking=False)
        _check_free(out)  # again: another run may have finished a moment ago
    except Timeout:
        raise ConfigError(f"{out}: another prepare works in it; wait for its end, or choose another --out") from None
    except OSError as error:
        raise ConfigError(f"{out}: is not a folder to write to: {error.strerror}; give another --out") from None
    try:
        yield
    finally:
        claim.release()
    with suppress(OSError):  # it is of no use any more, and does no harm
        (out / CLAIM_FILE).unlink(missing_ok=True)


def _check_free(out: Path) -> None:
    """Raise ConfigError if the folder holds a manifest, or work that is not of an interrupted `prepare`."""
    if (out / MANIFEST_FILE).exists():
        raise ConfigError(f"{out}: holds prepared data already; remove it, or choose another --out")
    if (out / CLAIM_FILE).exists() or (out / WORK_FOLDER / STATE_FILE).exists():
        return
    for folder in (out / WORK_FOLDER, out / BLOBS_FOLDER):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(
                f"{folder}: is not of an interrupted prepare, and prepare would delete what is in it; move it "
                "elsewhere, or choose another --out"
            )


@contextmanager
def disk_errors_named(out: Path) -> Iterator[None]:
    """Raise ConfigError, which says what to do, if the disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ConfigError(
                f"{out}: the disk is full; prepared data need about twice the size of their tokens while they are "
                "made. Free some space, and start the command again to go on"
            ) from None
        raise
