"""Tests how `make chaos` judges the logs of the processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chaos import Failed, check_logs


def entry(event: str, level: str = "warning", **fields: object) -> str:
    """A line of a daemon's JSON log."""
    return json.dumps({"level": level, "event": event, "message": "said"} | fields) + "\n"


FINE = entry("node.joined", "info") + entry("node.not_counted", replica_differs=False) + entry("node.left", "info")


def test_logs_without_trouble_pass(tmp_path: Path) -> None:
    (tmp_path / "coordinator.1.log").write_text(FINE)
    (tmp_path / "node-1.0.log").write_text(FINE + "a line of some library\n")
    check_logs(tmp_path)


@pytest.mark.parametrize(
    "line",
    [
        entry("coordinator.replica_differs"),
        entry("node.resync"),
        entry("node.not_counted", replica_differs=True),
        entry("node.failed", "error"),
        entry("", exception="RuntimeError: the device fell off the bus"),
        "Traceback (most recent call last):\n",
        "Fatal Python error: Segmentation fault\n",
    ],
)
def test_trouble_is_found_in_the_log_of_any_process(tmp_path: Path, line: str) -> None:
    """Logs of processes that ended long ago are checked too."""
    (tmp_path / "node-1.0.log").write_text(FINE)
    (tmp_path / "node-2.4.log").write_text(FINE + line + FINE)
    with pytest.raises(Failed) as error:
        check_logs(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / 'node-2.4.log'}:4: {line.rstrip()}")
