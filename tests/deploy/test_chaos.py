"""Tests how `make chaos` judges the logs of the processes."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos import Failed, check_logs
from thinwire_common.logs import formatter, tell

Say = Callable[[logging.Logger], None]


def written(*said: Say) -> str:
    """The lines of a JSON log in the format of the daemons."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter("json"))
    log = logging.Logger("thinwire.test")
    log.addHandler(handler)
    for say in said:
        say(log)
    return out.getvalue()


def fine(log: logging.Logger) -> None:
    """Write three lines without trouble."""
    tell(log, logging.INFO, "node.joined", "joined", address="127.0.0.1:7700", name="node-1", node_id="a" * 32)
    tell(log, logging.WARNING, "node.not_counted", "not counted: late", reason="late", replica_differs=False)
    tell(log, logging.INFO, "node.left", "left at step 5", step=5, fingerprint="0123456789abcdef")


def raises(log: logging.Logger) -> None:
    try:
        raise RuntimeError("the device fell off the bus")
    except RuntimeError as error:
        log.warning("continuing", exc_info=error)


def differs(log: logging.Logger) -> None:
    tell(log, logging.WARNING, "coordinator.replica_differs", "differs", node_id="a" * 32, name="node-2", step=7)


def is_told_that_it_differs(log: logging.Logger) -> None:
    tell(log, logging.WARNING, "node.not_counted", "fetch them anew", reason="…", replica_differs=True)


def resyncs(log: logging.Logger) -> None:
    tell(log, logging.WARNING, "node.resync", "resyncing", reason="the row of step 7 does not follow")


def fails(log: logging.Logger) -> None:
    tell(log, logging.ERROR, "node.failed", "the disk fails")


def test_logs_without_trouble_pass(tmp_path: Path) -> None:
    (tmp_path / "coordinator.1.log").write_text(written(fine))
    (tmp_path / "node-1.0.log").write_text(written(fine) + "a line of some library\n")
    check_logs(tmp_path)


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("coordinator.1.log", written(differs)),
        ("coordinator.2.log", written(raises)),
        ("coordinator.2.log", "Traceback (most recent call last):\n"),
        ("coordinator.2.log", "Fatal Python error: Segmentation fault\n"),
        ("node-2.4.log", written(resyncs)),
        ("node-2.4.log", written(is_told_that_it_differs)),
        ("node-2.4.log", written(fails)),
        ("node-2.4.log", "Traceback (most recent call last):\n"),
    ],
)
def test_trouble_is_found_in_the_log_of_any_process(tmp_path: Path, log: str, line: str) -> None:
    """Logs of processes that ended long ago are checked too."""
    (tmp_path / "node-1.0.log").write_text(written(fine))
    (tmp_path / log).write_text(written(fine) + line + written(fine))
    with pytest.raises(Failed) as error:
        check_logs(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / log}:4: {line.rstrip()}")
