"""Says whether a state directory can be on the file system that it is on, before anything depends on it."""

from __future__ import annotations

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from thinwire_proto.errors import ConfigError

MOUNTS = Path("/proc/self/mountinfo")
ESCAPED = re.compile(r"\\([0-7]{3})")
ELSEWHERE = "give --state-dir a folder of a disk of this machine, such as one in your home folder"


@dataclass(frozen=True)
class FileSystem:
    """kind: as mount(8) has it, such as 9p, exfat or nfs4. place: the folder that it is mounted at."""

    kind: str
    place: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.place}"


def file_system_of(path: Path, mounts: Path = MOUNTS) -> FileSystem | None:
    """The file system that a path is on; None where the system does not say."""
    whole, found = os.path.realpath(path), None
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    for line in lines:
        fields, _, rest = line.partition(" - ")
        place = ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), fields.split()[4])
        if os.path.commonpath((whole, place)) == place and (found is None or len(place) >= len(found.place)):
            found = FileSystem(rest.split()[0], place)
    return found


def described(folder: Path) -> str:
    """The file system of a folder, in words."""
    found = file_system_of(folder)
    return f"the file system of {folder}" + (f" ({found})" if found else "")


def check_locks(folder: Path) -> None:
    """Raise ConfigError if the file system of a folder locks no files: two programs could then change its files at
    once. Raises OSError if nothing can be written there."""
    try:
        import fcntl  # noqa: PLC0415
    except ImportError:  # Windows, where every file system locks files
        return
    probe = folder / f"lock.{secrets.token_hex(8)}.part"
    handle = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        reason = error.strerror or error
        text = f"{described(folder)} locks no files ({reason}), so nothing is safe there; {ELSEWHERE}"
        raise ConfigError(text) from None
    finally:
        os.close(handle)
        probe.unlink(missing_ok=True)
