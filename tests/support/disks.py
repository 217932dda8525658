"""Small, full and read-only disks, mounted for one test. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PAGE_BYTES = 4096
FILLER = "filler"


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    """Mount an empty disk of this size at `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))
    try:
        yield folder
    finally:
        _unmount(folder)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make `folder` read-only by its path. Files that are already open stay writable."""
    _mount("--bind", str(folder), str(folder))
    try:
        _mount("-o", "remount,bind,ro", str(folder))
        yield
    finally:
        _unmount(folder)


def fill(disk: Path) -> None:
    """Fill what is free on a disk. It may be called again; `make_room` frees all of it."""
    with (disk / FILLER).open("ab", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * PAGE_BYTES)
        except OSError:
            return


def make_room(disk: Path) -> None:
    (disk / FILLER).unlink()


def _mount(*arguments: str) -> None:
    if os.name != "posix" or os.geteuid() != 0:
        pytest.skip("only root can mount a disk that is small or read-only")
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this machine does not let root mount: {done.stderr.strip()}")


def _unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # lazy: a process of the test may still be in it
