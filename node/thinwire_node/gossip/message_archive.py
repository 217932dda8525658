"""The archive of messages in a state directory, of a node in a swarm without a centre; see
`thinwire_proto.gossip.archive`.

An entry of the journal names how much of it belongs to that entry, and the archive is synced before the journal. So
after a kill, what comes behind that length is cut off, and the node writes it again.
"""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import BinaryIO

from thinwire_common.files import sync_folder
from thinwire_node.gossip.journal import JournalEntry
from thinwire_proto.errors import ConfigError
from thinwire_proto.gossip.archive import ArchiveHeader, pack_header


def open_archive(path: Path, header: ArchiveHeader, kept: JournalEntry | None) -> MessageArchive:
    """The archive of a node that begins, or that continues from a journal's entry. Raises ConfigError, OSError."""
    if kept is not None and kept.archived is None:
        raise ConfigError(
            f"{path}: this node has taken part without an archive, so its first messages are not there any more; "
            "leave --archive-messages out, or give another --state-dir to take part as a new node"
        )
    return MessageArchive(path, header, 0 if kept is None else kept.archived or 0)


class MessageArchive:
    """path: of its file. kept: the length that the journal names; 0: the node begins, with an empty archive.

    Raises ConfigError if the file is not what the journal says. All methods raise OSError."""

    def __init__(self, path: Path, header: ArchiveHeader, kept: int) -> None:
        self._path = path
        self._file = self._open(kept) if kept else self._create(header)

    def _create(self, header: ArchiveHeader) -> BinaryIO:
        """An archive from before a lost journal keeps its contents, under another name."""
        if self._path.exists():
            names = (self._path.with_name(f"{self._path.name}.{number}") for number in count(1))
            self._path.rename(next(name for name in names if not name.exists()))
        file = self._path.open("wb")
        file.write(pack_header(header))
        sync_folder(self._path.parent)
        return file

    def _open(self, kept: int) -> BinaryIO:
        size = self._path.stat().st_size if self._path.exists() else 0
        if size < kept:
            raise ConfigError(
                f"{self._path} has {size} bytes, and the journal names {kept}; restore it, or leave --archive-messages "
                "out"
            )
        file = self._path.open("r+b")
        file.truncate(kept)
        file.seek(kept)
        return file

    def add(self, entry: bytes) -> None:
        """Write an entry."""
        self._file.write(entry)

    def sync(self) -> int:
        """Sync all entries to disk. Returns the length to name in the journal."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()
