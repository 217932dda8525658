"""Seals updates: merges and encodes the votes, writes the body to disk and the row to the ledger, and then publishes.

If the process dies before the row is in the ledger, the step does not exist, and its contributions are not counted. If
it dies later, the step is sealed, and a replay finds it. With `--seal-after-standby`, the row is on the standby's disk
too before it is published.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from thinwire_coordinator.hall.ledger.signatures import NodeSignature, RowSignatures
from thinwire_coordinator.hall.ledger.state_directory import RunState, unsealed
from thinwire_coordinator.hall.standby.keeper import Keeper, StandbyAway
from thinwire_coordinator.hall.workers import Job, Workers
from thinwire_coordinator.star.feed import Feed
from thinwire_coordinator.star.messages import UpdateMessages, encode_update_parts
from thinwire_proto.contract import Contract
from thinwire_proto.errors import Locked
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import decay, learning_rate
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Merges
from thinwire_proto.identity import statements
from thinwire_proto.limits import FILE_WAIT_S
from thinwire_proto.wire.codec import encode_update
from thinwire_proto.wire.rows import Row


@dataclass(frozen=True)
class PublishedUpdate:
    """A sealed update and figures about it.

    components: those of the update that are not 0. size: encoded bytes. merge_s: time to merge and encode. seal_s: time
    to write body and row. applied: done when the coordinator's replica has applied the update; its result is the
    seconds that this took.
    """

    update: Update
    components: int
    size: int
    merge_s: float
    seal_s: float
    applied: asyncio.Future[float]


@dataclass(frozen=True)
class Earlier:
    """The replica of an earlier step, to which a row goes back, and the contract that is in force from then on."""

    replica: Replica
    contract: Contract


class Sealer:
    """Seals rounds one after another, and keeps the coordinator's own replica at the head."""

    def __init__(
        self,
        state: RunState,
        replica: Replica,
        feed: Feed,
        workers: Workers,
        now: Callable[[], float],
        keeper: Keeper | None = None,
    ) -> None:
        self._state = state
        self._replica = replica
        self._feed = feed
        self._workers = workers
        self._now = now
        self._head = replica.head
        self._keeper = keeper or Keeper(state, workers, now)

    async def seal(
        self,
        row: Row,
        signatures: tuple[NodeSignature, ...],
        merger: Merges,
        leases: Callable[[], bytes] | None = None,
        earlier: Earlier | None = None,
    ) -> PublishedUpdate:
        """Seal a round's update. Return when it is on disk and published.

        row: without its body and the row before it. signatures: of its contributions, by their nodes. merger: has all
        their votes queued to it, at least. leases: returns the packed leases; it is called when the row is queued, so
        that the row's leases are newer than all those recorded before. Raises OSError or LedgerError if the disk fails,
        Locked if another program holds the ledger's lock, and StandbyAway; nothing is published then, and after the
        last two nothing is on disk.

        earlier: what the row goes back to. It is in a snapshot before the row is published, since nodes fetch that.
        """
        began = self._now()
        update, components, encoded = await self._workers.submit(Job.ENCODE_UPDATE, self._body, row.step, merger)
        merged = self._now()
        if away := self._keeper.why_away():
            raise StandbyAway(away)
        row, out = await self._workers.submit(
            Job.WRITE_UPDATE, self._write, row, signatures, encoded, leases and leases()
        )
        self._head = row.hash
        self._keeper.sealed(row.step + 1)
        await self._keeper.has_row()
        on_disk = self._now()
        if earlier is None:
            applied = self._workers.submit(Job.APPLY_UPDATE, self._apply, update, row.hash)
        else:
            self._state.contract = earlier.contract  # before the snapshot, for which nodes must drop their momentum
            applied = self._workers.submit(Job.APPLY_UPDATE, self._go_back, earlier.replica, row.hash)
            await applied
            earlier.replica.step, earlier.replica.head = row.step + 1, row.hash
            await self._workers.submit(Job.WRITE_SNAPSHOT, self._state.save_snapshot, earlier.replica)
        await self._feed.publish(out)
        return PublishedUpdate(update, components, len(encoded), merged - began, on_disk - merged, applied)

    def _apply(self, update: Update, head: bytes) -> float:
        """Apply the update to the replica. Return the seconds that this took."""
        began = self._now()
        self._let_files_be_written(began)
        self._replica.apply(update, head)
        return self._now() - began

    def _go_back(self, earlier: Replica, head: bytes) -> float:
        """The same for a row that goes back."""
        began = self._now()
        self._let_files_be_written(began)
        self._replica.go_back(earlier, head)
        return self._now() - began

    def _let_files_be_written(self, began: float) -> None:
        for frozen in self._replica.frozen:
            frozen.released.wait(max(0.0, began + FILE_WAIT_S - self._now()))

    def _body(self, step: int, merger: Merges) -> tuple[Update, int, bytes]:
        schedule, merged = self._state.contract.schedule, merger.merged()
        update = Update(step, learning_rate(schedule, step), decay(schedule, step), merged)
        return update, len(merged), encode_update(update, self._replica.layout)

    def _write(
        self,
        row: Row,
        signatures: tuple[NodeSignature, ...],
        encoded: bytes,
        leases: bytes | None,
    ) -> tuple[Row, UpdateMessages]:
        body_hash = self._state.bodies.put(encoded)
        row = replace(row, body_hash=body_hash, body_bytes=len(encoded), previous=self._head)
        signature = self._state.key.sign(statements.row(row.hash))
        try:
            sealed = unsealed(self._state.contract, row.step)
            self._state.ledger.append(row, RowSignatures(signature, signatures), leases, sealed)
        except Locked:
            self._state.bodies.remove([row.body_hash.hex()])
            raise
        return row, encode_update_parts(row.step, row.canonical(), encoded, signature)
