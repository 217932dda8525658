"""The items of the stream from a coordinator to its standby, as msgpack maps. docs/wire.md describes them.

An item is whole on the standby's disk, or not at all. Whatever is lost on the way is sent again, from where the
standby stands when it follows the next time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_proto.blobs import Blob
from thinwire_proto.contract.amendment import parse_amendment
from thinwire_proto.data.tokens import HELD_OUT
from thinwire_proto.errors import Damaged, PayloadError
from thinwire_proto.exact.amendments import amendments_in
from thinwire_proto.wire.rows import Row

ITEM_BYTES_MAX = 1 << 32
"""An update of a contract is bounded by it, and is far smaller; the tables of the largest run have 40 MB."""
SNAPSHOT_PART_BYTES = 1 << 20
VERSION = 1
"""The version of the items. Both machines must have the same."""

Item = Mapping[str, Any]


@dataclass(frozen=True)
class Position:
    """Where a standby stands. address: HOST:PORT for nodes; empty: they are not told. step: rows that it has. head: the
    hash of the newest. snapshot: the step of its newest whole one. begun, begun_bytes: the step of one that it has in
    part, and how much of it. process: random bytes, which tell the processes of standbys apart."""

    address: str
    step: int
    head: bytes
    snapshot: int
    begun: int = 0
    begun_bytes: int = 0
    process: bytes = b""


def pack(item: Item) -> bytes:
    return bytes(msgpack.packb(item, use_bin_type=True))


def unpack(data: bytes) -> Item:
    """Raises PayloadError."""
    try:
        found = msgpack.unpackb(data, raw=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise PayloadError(f"this is no item: {error}") from None
    if not isinstance(found, dict):
        raise PayloadError("this is no item: it is not a map")
    return found


def row_item(state: RunState, ledger: Ledger, step: int, *, is_newest: bool) -> bytes:
    """A sealed row with its signatures and its body. is_newest: with the leases and the directory after it, which hold
    for the newest row alone. Raises LedgerError or OSError."""
    row, signed = ledger.row(step), []
    for entry in row.counted:
        key, signature = ledger.signatures.key_of(entry.node), ledger.signatures.of_contribution(entry.contribution)
        if key is None or signature is None:
            raise Damaged(f"step {step}: a contribution has lost its signature", step)
        signed.append([key.data, signature])
    body = state.bodies.get(row.body_hash, row.body_bytes)
    item: dict[str, Any] = {
        "row": row.canonical(),
        "signature": ledger.signatures.of_row(step),
        "signed": signed,
        "body": body,
    }
    if added := {blob.hash: state.blobs.path(blob).read_bytes() for blob in blobs_in(row)}:
        item["blobs"] = added
    return pack(item | _granted(ledger) if is_newest else item)


def blobs_in(row: Row) -> Iterator[Blob]:
    for amendment in map(parse_amendment, amendments_in(row.extras)):
        for shard in amendment.changes.get(HELD_OUT, {}).values():
            yield Blob(shard["hash"], shard["size"])


def terms_item(ledger: Ledger) -> bytes:
    """All terms, so that a promotion of the standby takes a later one. Raises LedgerError."""
    rows = [[term, term, first_round] for term, first_round in ledger.terms()]
    return pack({"tables": {"terms": {"whole": True, "rows": rows, "gone": []}}})


def leases_item(ledger: Ledger) -> bytes:
    """The leases and the directory. Raises LedgerError."""
    return pack(_granted(ledger))


def _granted(ledger: Ledger) -> dict[str, Any]:
    leases, directory = ledger.granted()
    return {"leases": leases, "directory": directory}


def snapshot_item(path: Path, step: int, offset: int) -> bytes:
    """A part of a snapshot. Raises OSError."""
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(SNAPSHOT_PART_BYTES)
    return pack({"snapshot": step, "offset": offset, "size": path.stat().st_size, "data": data})
