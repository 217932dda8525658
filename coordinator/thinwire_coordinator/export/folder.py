"""Creates a folder that appears whole or not at all, and replaces only folders that it made itself."""

from __future__ import annotations

import glob
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from thinwire_common.files import sync_folder
from thinwire_proto.errors import ConfigError
from thinwire_proto.limits import EXPORT_LEFT_S

MARK = "thinwire.json"
"""The file by which an export is recognised. It lists the other files."""
MARK_BYTES_MAX = 1 << 20


@contextmanager
def whole_folder(out: Path, about: dict[str, Any]) -> Iterator[Path]:
    """Yield an empty folder to write files into, which takes the place of `out` when the block ends.

    about: what the file thinwire.json says besides the list of files. If the block raises, `out` stays as it was.
    Raises ConfigError if `out` is anything but missing, empty, or an earlier export, or if it cannot be written.
    """
    out = out.resolve()
    check_free(out)
    passing = out.with_name(f".{out.name}.part-{secrets.token_hex(4)}")  # another may be under way
    try:
        _remove_old_parts(out)
        passing.mkdir(parents=True)
        yield passing
        names = sorted(path.name for path in passing.iterdir())
        mark = json.dumps(about | {"files": names}, indent=2, ensure_ascii=False) + "\n"
        (passing / MARK).write_text(mark, encoding="utf-8")
        _finish(passing)
        _take_place(passing, out)
    except OSError as error:
        raise ConfigError(f"{out}: cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(passing, ignore_errors=True)


def _remove_old_parts(out: Path) -> None:
    """Remove what exports that were killed have left."""
    for part in out.parent.glob(f".{glob.escape(out.name)}.part-*"):
        with suppress(FileNotFoundError):  # it is complete by now
            if time.time() - part.stat().st_mtime > EXPORT_LEFT_S:
                shutil.rmtree(part, ignore_errors=True)


def check_free(out: Path) -> None:
    """Raise ConfigError unless a folder may be written to `out`."""
    if out.resolve() == Path.cwd():
        raise ConfigError(f"{out}: is the folder that you are in, which cannot be replaced; give another --out")
    try:
        found = {path.name for path in out.iterdir()} if out.exists() else set()
    except OSError as error:
        raise ConfigError(f"{out}: is not a folder to write to: {error.strerror}; give another --out") from None
    if not found:
        return
    if MARK not in found:
        raise ConfigError(f"{out}: is not empty, and not an earlier export; give another --out")
    if foreign := sorted(found - _files_of(out / MARK) - {MARK}):
        raise ConfigError(
            f"{out}: is an earlier export, but {foreign[0]} was added to it; move it elsewhere, or give another --out"
        )


def _files_of(mark: Path) -> set[str]:
    try:
        with mark.open("rb") as file:
            return {str(name) for name in json.loads(file.read(MARK_BYTES_MAX))["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _finish(folder: Path) -> None:
    """Sync all files, and give them one mode: safetensors makes files that only their owner reads."""
    mode = (folder / MARK).stat().st_mode
    for path in folder.iterdir():
        path.chmod(mode)
        with path.open("r+b") as file:  # Windows can sync only files that are open for writing
            os.fsync(file.fileno())
    sync_folder(folder)


def _take_place(passing: Path, out: Path) -> None:
    old = out.with_name(f".{out.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    try:
        passing.rename(out)
    except OSError:
        if old.exists():
            old.rename(out)
        raise
    sync_folder(out.parent)
    shutil.rmtree(old, ignore_errors=True)
