"""The folder that `prepare` writes: claims it for one run at a time, and names what is wrong with its disk."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from thinwire_coordinator.prepare.checkpoint import STATE_FILE
from thinwire_coordinator.prepare.sources import CLAIM_FILE, WORK_FOLDER
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE
from thinwire_proto.errors import ConfigError


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
