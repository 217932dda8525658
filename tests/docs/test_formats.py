"""The page of formats names the versions that the code writes."""

from __future__ import annotations

from pathlib import Path

from thinwire_coordinator.gossip import ledger_rows, measurements
from thinwire_coordinator.hall.access import database
from thinwire_coordinator.hall.ledger import schema
from thinwire_node.gossip import journal
from thinwire_proto.contract.contract import FORMAT
from thinwire_proto.exact import replica
from thinwire_proto.identity import invite
from thinwire_proto.wire import codec, rows

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
WRITTEN = {
    "contract": FORMAT,
    "row, with amendments": rows.VERSION,
    "contribution, update body": codec.VERSION,
    "beat, measurement, final mean of a gossip run": ledger_rows.BODY_VERSION,
    "`ledger.sqlite`": schema.SCHEMA_VERSION,
    "`access.sqlite`": database.SCHEMA_VERSION,
    "snapshot, a node's replica": replica.SNAPSHOT_VERSION,
    "a node's journal in a gossip run": journal.VERSION,
    "invite": invite.PREFIX[len("twi") : -1],
}


def test_the_page_names_what_is_written() -> None:
    cells = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    found = {cell[0].removeprefix("| "): cell[2] for cell in cells if len(cell) == 4}
    assert {name: found.get(name) for name in WRITTEN} == {name: str(version) for name, version in WRITTEN.items()}
    assert measurements.BODY_VERSION == ledger_rows.BODY_VERSION
