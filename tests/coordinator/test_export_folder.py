"""A folder that is exported appears whole, whatever else is exported there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from thinwire_coordinator.export.folder import MARK, check_free, whole_folder
from thinwire_proto.errors import ConfigError


def test_two_exports_to_one_folder_leave_one_of_them_whole(tmp_path: Path) -> None:
    out = tmp_path / "model"
    with whole_folder(out, {"step": 1}) as first:
        (first / "weights").write_text("first")
        with whole_folder(out, {"step": 2}) as second:
            (second / "weights").write_text("second")
            (second / "config").write_text("second")
        assert json.loads((out / MARK).read_text()) == {"step": 2, "files": ["config", "weights"]}
    assert json.loads((out / MARK).read_text()) == {"step": 1, "files": ["weights"]}
    assert (out / "weights").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    (tmp_path / "other").mkdir()
    assert out.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_the_folder_that_one_is_in_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="is the folder that you are in"):
        check_free(Path())
