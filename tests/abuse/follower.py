"""A hostile node's own replica, so that its contributions pass every check before the one under attack."""

from __future__ import annotations

import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import grpc

from abuse.target import Joined
from thinwire_proto.exact.replica import Replica, load_replica
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.codec import decode_update
from thinwire_proto.wire.rows import Row, parse_row

PATIENCE_S = 10.0


class Follower:
    """Fetches the newest snapshot, and applies every update in a thread until the connection ends."""

    def __init__(self, member: Joined) -> None:
        self._member = member
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "snapshot"
            path.write_bytes(b"".join(part.data for part in member.stub.Snapshot(pb.SnapshotRequest())))
            self._replica: Replica = load_replica(member.contract, path)
        self._applied = threading.Condition()
        threading.Thread(target=self._follow, daemon=True).start()

    def fingerprint(self, announcement: pb.Announcement) -> int:
        """Of the parameters that a round stands on; 0 if they do not come, or are gone already."""
        with self._applied:
            self._applied.wait_for(lambda: self._replica.step >= announcement.step, PATIENCE_S)
            there = self._replica.step == announcement.step and len(announcement.nonces) > 0
            return self._replica.fingerprint(announcement.nonces[0]) if there else 0

    def _follow(self) -> None:
        row: Row | None = None
        body = b""
        with suppress(grpc.RpcError):
            for part in self._member.stub.Updates(pb.UpdatesRequest(from_step=self._replica.step)):
                row, body = row or parse_row(part.row), body + part.data
                if len(body) == row.body_bytes:
                    update = decode_update(body, self._replica.layout, self._member.contract.demo.magnitude)
                    with self._applied:
                        self._replica.apply(update, row.hash)
                        self._applied.notify_all()
                    row, body = None, b""
