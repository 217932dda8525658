"""Reports between their answer and their row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgpack
import pytest

from thinwire_coordinator.gossip.settings import REPORTS_OF_A_NODE
from thinwire_coordinator.gossip.store import REPORT, SealedReport, Unsealed
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_proto.errors import Damaged
from thinwire_proto.gossip.reports import Report, SignedReport
from thinwire_proto.identity.keys import PublicKey

HEAD = bytes(32)
KEY = PublicKey(b"k" * 32)


def report(number: int, node: str = "a" * 32) -> SealedReport:
    signed = SignedReport(node, HEAD, number, Report(1, number, HEAD, samples=4), bytes(64))
    return SealedReport(signed, KEY, samples=4)


def on_disk(ledger: Ledger) -> list[SealedReport]:
    return [SealedReport.from_plain(plain) for plain in ledger.directory_parts(REPORT)]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with closing(Ledger(tmp_path / "ledger.sqlite")) as opened:
        yield opened


def test_reports_come_back_from_disk_in_their_order(ledger: Ledger) -> None:
    unsealed, reports = Unsealed([]), [report(number) for number in (3, 1, 2)]
    for entry in reports[:2]:
        unsealed.add(entry)
    ledger.record_directory(b"", unsealed.parts())
    unsealed.add(reports[2])
    ledger.record_directory(b"", unsealed.parts() | {"members": msgpack.packb([])})
    assert on_disk(ledger) == reports
    assert Unsealed(on_disk(ledger)).take() == reports


def test_reports_from_before_a_restart_take_room_in_the_row() -> None:
    unsealed = Unsealed([report(number) for number in range(1, REPORTS_OF_A_NODE)])
    assert unsealed.has_room("a" * 32)
    unsealed.add(report(REPORTS_OF_A_NODE))
    assert not unsealed.has_room("a" * 32)
    assert unsealed.has_room("b" * 32)
    unsealed.take()
    assert unsealed.has_room("a" * 32)


def test_reports_of_a_row_that_could_not_be_written_are_in_the_next_one_once() -> None:
    unsealed = Unsealed([])
    unsealed.add(report(1))
    unsealed.parts()  # on disk
    taken = unsealed.take()
    unsealed.add(report(2))
    unsealed.put_back(taken)
    assert sorted(unsealed.parts()) == sorted([report(1).key, report(2).key])  # a row may have deleted the first
    unsealed.put_back()  # that write failed
    assert len(unsealed.parts()) == 2
    assert not unsealed.is_empty
    assert unsealed.take() == [report(1), report(2)]
    assert unsealed.is_empty
    unsealed.put_back()
    assert unsealed.parts() == {}  # they are sealed now


@pytest.mark.parametrize("plain", [None, [], [b"", 1, b""], [KEY.data, "x", b""], [KEY.data, 1, 2, 3]])
def test_what_is_no_report_is_named_as_damage(plain: object) -> None:
    with pytest.raises(Damaged, match="cannot read a report on disk that is in no row"):
        SealedReport.from_plain(plain)
