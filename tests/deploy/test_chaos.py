"""What `make chaos` makes of what the processes wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos import Failed, check_logs

FINE = """05:00:00 joined at 127.0.0.1:7700 as node-1
05:00:01 not counted: round 3 ended before this arrived
05:00:02 counted 3 times, not counted 1 times, 0 micro-batches dropped, 0 resyncs, 9 tokens, 9 bytes up, 9 bytes down
05:00:03 left at step 5, fingerprint 0123456789abcdef
"""


def test_logs_of_a_run_in_which_nothing_was_wrong(tmp_path: Path) -> None:
    (tmp_path / "coordinator.1.log").write_text("05:00:00 term 1, listening on 127.0.0.1:7700\n")
    (tmp_path / "node-1.0.log").write_text(FINE)
    check_logs(tmp_path)


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("coordinator.1.log", "node-2: its replica differs at step 7; its votes are not merged"),
        ("coordinator.2.log", "Traceback (most recent call last):"),
        ("node-2.4.log", "the parameters differ from those that were sealed at step 7; resyncing"),
        (
            "node-2.4.log",
            "not counted: the parameters that this was computed on are not those of step 7: fetch them anew",
        ),
        ("node-2.4.log", "the row of step 7 does not follow the row that led to step 7; resyncing"),
        ("node-2.4.log", "Traceback (most recent call last):"),
    ],
)
def test_a_line_that_tells_of_trouble_is_found_in_any_log(tmp_path: Path, log: str, line: str) -> None:
    """Each as the product writes it; in the log of a life that is long over, too."""
    (tmp_path / "node-1.0.log").write_text(FINE)
    (tmp_path / log).write_text(f"{FINE}05:00:04 {line}\n{FINE}")
    with pytest.raises(Failed) as error:
        check_logs(tmp_path)
    assert str(error.value).startswith(f"{tmp_path / log}:5: 05:00:04 {line}")
