"""The tallies of a node count on over its processes and past midnight."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from support.reports import small_report
from thinwire_node.observe import status
from thinwire_node.observe.reporter import Tallies
from thinwire_node.report import Tally

ONE = Tally(1, 100, 2.0, 1000, 3000)
TWO = ONE.plus(ONE)


def test_a_process_goes_on_where_the_one_before_has_ended(tmp_path: Path) -> None:
    first = Tallies.of_earlier_processes(tmp_path)
    today, in_all = first.with_process("2026-11-28", ONE)
    assert (today, in_all) == (Tally(), ONE)  # what a process gave before its first report is of no day
    today, in_all = first.with_process("2026-11-28", TWO)
    assert (today, in_all) == (ONE, TWO)
    status.write(tmp_path, replace(small_report(), day="2026-11-28", today=today, in_all=in_all))

    second = Tallies.of_earlier_processes(tmp_path)
    assert second.with_process("2026-11-28", ONE) == (TWO, TWO.plus(ONE))
    assert second.with_process("2026-11-29", ONE) == (Tally(), TWO.plus(ONE))
    assert second.with_process("2026-11-29", TWO) == (ONE, TWO.plus(TWO))


@pytest.mark.parametrize("damaged", [b"", b"{}", b"[1]"])
def test_a_report_that_cannot_be_read_counts_for_nothing(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / status.FILE).write_bytes(damaged)
    assert Tallies.of_earlier_processes(tmp_path) == Tallies()
