"""From a round's contributions to a sealed update: merge, encode, body on disk, row in the ledger, and only then out.

If the process dies before the row is in, the step does not exist, and its contributions are not counted. If it dies
after, the step is sealed, and replay finds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thinwire_coordinator.feed import Feed, SealedUpdate
from thinwire_coordinator.state import State
from thinwire_coordinator.workers import Workers
from thinwire_proto.codec import Update, encode_update
from thinwire_proto.replica import Replica
from thinwire_proto.rows import Counted, Row
from thinwire_proto.schedule import decay, learning_rate
from thinwire_proto.votes import Votes, merge


@dataclass(frozen=True)
class Accepted:
    """A contribution that is in the round: checked, decoded, and not merged yet."""

    counted: Counted
    votes: Votes
    loss: float


@dataclass(frozen=True)
class SealedRound:
    """Which round a row is for."""

    round: int
    epoch: int
    step: int
    nonce: int
    fingerprint: int


class Sealer:
    """Seals rounds one after the other, and keeps the coordinator's own replica at the head."""

    def __init__(self, state: State, replica: Replica, feed: Feed, workers: Workers) -> None:
        self._state = state
        self._replica = replica
        self._feed = feed
        self._workers = workers
        self._head = replica.head

    async def seal(self, sealed: SealedRound, accepted: Sequence[Accepted], lease_cursor: int) -> Row:
        """Returns when the update is on disk, out, and queued for the coordinator's replica. Raises OSError or
        sqlite3.Error where the disk fails; nothing is announced then."""
        body = await self._workers.merge.submit(self._body, sealed.step, accepted)
        counted = tuple(entry.counted for entry in accepted)
        row = await self._workers.disk.submit(self._write, sealed, counted, body, lease_cursor)
        self._head = row.hash
        self._workers.replica.submit(self._apply, row, body)
        await self._feed.publish(SealedUpdate(row.canonical(), body[1]))
        return row

    def _body(self, step: int, accepted: Sequence[Accepted]) -> tuple[Update, bytes]:
        merged = merge(((entry.votes, entry.counted.weight) for entry in accepted), self._replica.layout.components)
        schedule = self._state.contract.schedule
        update = Update(step, learning_rate(schedule, step), decay(schedule, step), merged)
        return update, encode_update(update)

    def _write(
        self, sealed: SealedRound, counted: tuple[Counted, ...], body: tuple[Update, bytes], lease_cursor: int
    ) -> Row:
        encoded = body[1]
        row = Row(
            step=sealed.step,
            round=sealed.round,
            epoch=sealed.epoch,
            nonce=sealed.nonce,
            fingerprint=sealed.fingerprint,
            body_hash=self._state.bodies.put(encoded),
            body_bytes=len(encoded),
            counted=counted,
            previous=self._head,
        )
        self._state.ledger.append(row, lease_cursor)
        return row

    def _apply(self, row: Row, body: tuple[Update, bytes]) -> None:
        self._replica.apply(body[0], row.hash)
