"""Texts that a coordinator sends are cleaned at the node's door, and once more where they are shown."""

from __future__ import annotations

import io
import json
import logging
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from support.reports import small_report
from thinwire_common.logs import formatter
from thinwire_node.exchange.coordinator import messages
from thinwire_node.exchange.port import Waiting
from thinwire_node.observe import definitions
from thinwire_node.observe.view import lines
from thinwire_proto.clean_text import TEXT_BYTES_MAX
from thinwire_proto.contract import canonical_json
from thinwire_proto.errors import ContractError
from thinwire_proto.wire import service_pb2 as pb

EVIL = "\x1b[2J\x1b]0;owned\x07no\r\n12:00:00 all is well\u202e\u200b"
CLEANED = "no 12:00:00 all is well"


def test_announcements_and_receipts() -> None:
    waiting = messages.announcement(pb.Announcement(state=pb.Announcement.STATE_WAITING, text=EVIL))
    assert isinstance(waiting, Waiting)
    assert waiting.text == CLEANED
    assert messages.outcome(pb.Receipt(text=EVIL)).text == CLEANED
    assert len(messages.outcome(pb.Receipt(text="x" * 1_000_000)).text.encode()) <= TEXT_BYTES_MAX


def test_errors_about_a_contract_quote_it_cleanly() -> None:
    document = {"version": 2, EVIL: 1} | {f"key {number}{EVIL}": 1 for number in range(2000)}
    with pytest.raises(ContractError) as raised:
        messages.admission(pb.JoinReply(contract=canonical_json(document)))
    assert str(raised.value).isprintable()
    assert len(str(raised.value).encode()) <= TEXT_BYTES_MAX


def test_the_live_view() -> None:
    shown = [line.plain for line in lines(replace(small_report(), name=EVIL, words=EVIL), 200)]
    assert all(line.isprintable() for line in shown)
    assert CLEANED in shown[0]


@pytest.mark.parametrize("name", ["text", "json"])
def test_a_log_line_stays_one_line_and_shows_everything(name: str) -> None:
    record = logging.LogRecord("thinwire", logging.WARNING, __file__, 1, "%s", (EVIL,), None)
    record.event, record.fields = "node.no_session", {"reason": EVIL}
    written = formatter(name).format(record)
    for line in written.split("\n"):
        assert line.isprintable()
    if name == "json":
        assert json.loads(written)["reason"] == EVIL  # nothing is lost for programs
        assert "\n" not in written
    else:
        assert all(line.startswith("  ") for line in written.split("\n")[1:])


def test_a_label_of_prometheus_cannot_end_early() -> None:
    name = 'a"} 1\nthinwire_node_info{name="b\\'
    registry = CollectorRegistry()

    class One:
        def collect(self):  # type: ignore[no-untyped-def]
            family: Any = definitions.INFO.family()
            family.add_metric((name, "cpu", "1"), 1)
            yield family

    registry.register(One())
    text = generate_latest(registry).decode()
    (family,) = text_string_to_metric_families(text)
    assert [sample.labels["name"] for sample in family.samples] == [name]
    assert io.StringIO(text).read().count("\nthinwire_node_info{") == 1
