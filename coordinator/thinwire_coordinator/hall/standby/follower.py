"""The standby's side of the stream: writes items into its state directory, and says where it stands. All calls block.

A row is checked as a node checks it: it follows the row before it, the coordinator's key has signed it, and its body
has the hash that it names. The replay after a promotion checks the rest.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from thinwire_common.files import rename_synced
from thinwire_coordinator.hall.ledger.creation import keep_blob
from thinwire_coordinator.hall.ledger.retention import Retention
from thinwire_coordinator.hall.ledger.signatures import NodeSignature, RowSignatures
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_coordinator.hall.standby.items import Item, Position, blobs_in, unpack, write_changes
from thinwire_proto.contract.amendment import parse_amendment
from thinwire_proto.errors import ContractError, PayloadError, ReplicaError
from thinwire_proto.exact.amendments import amended_by, amendments_in
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import PublicKey
from thinwire_proto.wire.rows import Row, parse_row

log = logging.getLogger("thinwire.coordinator")


class Follower:
    """Keeps the state directory of a standby. address: of the standby, for nodes. keep: see `retention`."""

    def __init__(self, state: RunState, address: str, keep: int | None = None) -> None:
        self._state = state
        self._address = address
        self._retention = Retention(state, keep)
        self._retention.sweep()
        self._process = secrets.token_bytes(16)
        self._unsound = 0  # the step of the newest snapshot that was not right when it was whole
        self.step = state.ledger.step

    def position(self) -> Position:
        """Where the standby stands. Raises LedgerError."""
        self.step = self._state.ledger.step
        head = self._state.ledger.row(self.step - 1).hash if self.step else b""
        snapshot = max(self._state.snapshot_steps()[-1], self._unsound)
        begun = [path for path in self._parts() if (step := _step_of(path)) is not None and step > snapshot]
        if not begun:
            return Position(self._address, self.step, head, snapshot, process=self._process)
        path = max(begun, key=lambda path: _step_of(path) or 0)
        begun_bytes = path.stat().st_size
        return Position(self._address, self.step, head, snapshot, _step_of(path) or 0, begun_bytes, self._process)

    def apply(self, data: bytes) -> None:
        """Write an item; it is on disk on return. Raises PayloadError if it is not right, LedgerError, OSError."""
        item = unpack(data)
        try:
            if "row" in item:
                self._append(item)
            elif "snapshot" in item:
                self._add_to_snapshot(item["snapshot"], item["offset"], item["size"], item["data"])
            elif "tables" in item:
                write_changes(self._state.folder, item["tables"])
            else:
                self._grant(item["leases"], item["directory"])
        except (ContractError, KeyError, TypeError, ValueError) as error:
            raise PayloadError(f"an item cannot be read: {error!r}") from None

    def _append(self, item: Item) -> None:
        state, row, body = self._state, parse_row(item["row"]), item["body"]
        ledger = state.ledger
        if row.step != self.step or (self.step and row.previous != ledger.row(self.step - 1).hash):
            raise PayloadError(f"the row of step {row.step} does not follow that of step {self.step - 1}")
        if not state.key.public.verifies(item["signature"], statements.row(row.hash)):
            raise PayloadError(f"the row of step {row.step} is not signed by the key of this run")
        if hashlib.sha256(body).digest() != row.body_hash:
            raise PayloadError(f"the body of step {row.step} does not match the hash in its row")
        signed = tuple(NodeSignature(PublicKey(key), signature) for key, signature in item["signed"])
        for blob in blobs_in(row):
            if keep_blob(state.blobs.folder, item["blobs"][blob.hash]) != blob:
                raise PayloadError(f"the blob {blob.hash[:16]}… has other contents")
        state.bodies.put(body)
        directory: Mapping[str, bytes] = item.get("directory", {})
        forget = [key for key in ledger.granted()[1] if key not in directory] if "directory" in item else []
        ledger.append(row, RowSignatures(item["signature"], signed), item.get("leases"), forget)
        self.step += 1
        self._amend(row)
        if directory and item["leases"] is not None:
            ledger.record_directory(item["leases"], directory)

    def _amend(self, row: Row) -> None:
        """Know what begins with a row: a run that has gone back needs other snapshots."""
        known = {amendment.id for amendment in self._state.contract.amendments}
        found = [data for data in amendments_in(row.extras) if parse_amendment(data).id not in known]
        self._state.contract = amended_by(self._state.contract, found)

    def _grant(self, leases: bytes | None, directory: Mapping[str, bytes]) -> None:
        if leases is not None:
            self._state.ledger.record_directory(leases, directory)

    def _add_to_snapshot(self, step: int, offset: int, size: int, data: bytes) -> None:
        path = self._state.snapshot_path(int(step))
        part = path.with_name(path.name + ".part")
        for other in self._parts():
            if other != part:
                other.unlink()
        with part.open("ab") as file:
            if file.tell() != offset:
                raise PayloadError(f"a part of the snapshot of step {step} begins at byte {offset} of {file.tell()}")
            file.write(data)
            end = file.tell()
        if end < size:
            return
        rename_synced(part, path)
        try:
            self._state.check_own_snapshot(step)
        except ReplicaError as error:
            path.unlink()
            self._unsound = int(step)
            log.warning("the snapshot of step %d is not kept, because it is damaged at its source: %s", step, error)
            return
        self._retention.trim()

    def _parts(self) -> list[Path]:
        return list((self._state.folder / "snapshots").glob("*.safetensors.part"))


def _step_of(part: Path) -> int | None:
    """The step of a snapshot that is there in part."""
    with suppress(ValueError):
        return int(part.name.partition(".")[0])
    return None
