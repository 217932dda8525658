"""Tests of the ready file, which gives a daemon's addresses while its process is usable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from thinwire_common.ready_file import READY_FILE, prepare_ready, read_ready, remove_ready, write_ready
from thinwire_proto.errors import LocalError


def test_a_ready_file_is_valid_only_for_the_process_that_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / READY_FILE
    assert read_ready(path, os.getpid()) is None
    write_ready(path, address="127.0.0.1:7700", page=None)
    expected = {"pid": os.getpid(), "address": "127.0.0.1:7700", "page": None}
    assert read_ready(path, os.getpid()) == expected
    assert read_ready(path, os.getpid() + 1) is None  # the file of another process, which was killed
    remove_ready(path)
    remove_ready(path)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_is_an_error_with_the_path(tmp_path: Path) -> None:
    path = tmp_path / "missing" / READY_FILE
    with pytest.raises(LocalError, match=f"cannot write the ready file {path}: No such file"):
        write_ready(path)
    with pytest.raises(LocalError, match=f"cannot write the ready file {path}: No such file"):
        prepare_ready(path)
