"""A coordinator's swarm on a new state directory, with its own threads and without sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

from bench.joining import Everybody
from support.new_state import make_state
from support.small import random_votes, small_contract
from thinwire_coordinator.hall.hall import open_hall
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.hall.workers import Job, Workers
from thinwire_coordinator.star.open_round import OpenRound
from thinwire_coordinator.star.round.admission import ContributionClaim
from thinwire_coordinator.star.round.announcements import Announcement, Receipt
from thinwire_coordinator.star.star import Star
from thinwire_proto.contract import DemoSpec
from thinwire_proto.exact.replica import Replica
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import KEY_BYTES, SecretKey
from thinwire_proto.wire.codec import encode_votes
from thinwire_proto.wire.rows import contribution_hash

PATIENCE_S = 10


class SwarmNodes:
    """The nodes of a swarm in its first term, without sockets. replica: equal to that of each node."""

    def __init__(self, swarm: Star) -> None:
        self.swarm = swarm
        self.state = swarm.state
        self.workers = swarm.workers
        self.replica: Replica = swarm.state.load_snapshot(0)
        self._streams: list[AsyncGenerator[Announcement, None]] = []

    def join(self, letter: str) -> Member:
        joined = self.swarm.members.join(key_of(letter).public, letter)
        assert joined is not None
        return joined[0]

    async def attend(self, member: Member) -> AsyncGenerator[Announcement, None]:
        """Open the stream of a node and read its first announcement, so that the node counts as active."""
        stream = self.swarm.attend(member)
        self._streams.append(stream)
        await anext(stream)
        return stream

    def payload(self, seed: int, k: int = 32) -> bytes:
        return encode_votes(random_votes(self.replica.layout, k, seed), self.replica.layout)

    @property
    def current(self) -> OpenRound:
        """The open round."""
        current = self.swarm.intake.current
        assert current is not None
        return current

    def claim(self, member: Member, payload: bytes, fingerprint: int | None = None) -> ContributionClaim:
        """fingerprint: of the replica at the open round's step; None if that is step 0."""
        current = self.current.round
        (nonce,) = self.swarm.fingerprints.nonces(current.step)
        lease = self.swarm.hall.leases.granted(member.node_id)
        return ContributionClaim(
            session=member.session,
            term=1,
            round=current.number,
            step=current.step,
            base_step=current.step,
            fingerprint=self.replica.fingerprint(nonce) if fingerprint is None else fingerprint,
            samples=8,
            trained_through=lease[-1].start + lease[-1].count - 1 if lease else None,
            payload_bytes=len(payload),
            signature=self.sign(member, payload, 8),
        )

    def sign(self, member: Member, payload: bytes, samples: int) -> bytes:
        return key_of(member.name).sign(statements.contribution(self.name(member, payload), samples))

    async def contribute(self, member: Member, seed: int, k: int = 32) -> Receipt:
        payload = self.payload(seed, k)
        return await self.swarm.contribute(member, self.claim(member, payload), parts_of(payload))

    def name(self, member: Member, payload: bytes) -> bytes:
        return contribution_hash(self.state.contract.hash, 1, self.current.round.number, member.node_id, payload)

    async def end_streams(self) -> None:
        for stream in self._streams:
            await stream.aclose()


class Bench(SwarmNodes):
    """A swarm on a new state directory, and its nodes."""

    def __init__(self, folder: Path, demo: DemoSpec | None = None, **rounds: Any) -> None:
        rounds = {"length_ms": 2000, "samples": 8, **rounds}
        state = make_state(folder, small_contract(round=rounds, demo=demo or DemoSpec()))
        super().__init__(Star(open_hall(state, state.load_snapshot(0), Workers())))
        self.door = self.swarm.hall.door(Everybody())

    async def close(self) -> None:
        await self.end_streams()
        await asyncio.get_running_loop().run_in_executor(None, self.workers.close)
        self.state.close()


def key_of(letter: str) -> SecretKey:
    """The key of the node with this letter: always the same."""
    return SecretKey(letter.encode() * KEY_BYTES)


async def parts_of(payload: bytes, gate: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    """A payload in two parts. The second part waits for the gate."""
    middle = len(payload) // 2
    yield payload[:middle]
    if gate is not None:
        await gate.wait()
    yield payload[middle:]


class Busy:
    """Blocks the worker of a job inside a with block."""

    def __init__(self, workers: Workers, job: Job) -> None:
        self._over = threading.Event()
        workers.submit(job, self._over.wait, PATIENCE_S)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._over.set()
