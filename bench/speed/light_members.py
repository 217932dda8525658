"""Simulates many light members of one real coordinator.

    python -m bench.speed.light_members INVITE --members 200

Each member joins, follows updates and contributes over its own gRPC connection, but trains nothing. Votes are
synthetic, and all members share one replica. Use it to observe a coordinator with many nodes: the page, or the fan-out
of updates. The parameters walk at random, so the loss means nothing.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import torch

from bench.joining import Metadata, join
from thinwire_node.exchange.coordinator.dial import dial
from thinwire_node.storage.enrolment import read_destination
from thinwire_proto.contract import Contract, parse_contract
from thinwire_proto.errors import RemoteError
from thinwire_proto.exact.replica import Replica, load_replica
from thinwire_proto.exact.tiles import MATRIX_COMPONENTS, TileLayout
from thinwire_proto.exact.votes import Votes
from thinwire_proto.identity import statements
from thinwire_proto.identity.invite import Invite
from thinwire_proto.identity.keys import KEY_BYTES, SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.codec import decode_update, encode_votes
from thinwire_proto.wire.parts import MESSAGE_BYTES_MAX, split_for_upload
from thinwire_proto.wire.rows import contribution_hash, parse_row
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

VOTES = 64
"""Number of different synthetic contributions. Each member sends one of them in a round."""
CHANNEL_OPTIONS = (
    ("grpc.use_local_subchannel_pool", 1),  # one connection for each member
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
)
AGAIN_S = 0.5
JOINING_MAX = 20
"""Members that join at the same time."""


class Common:
    """State shared by all members: the replica at the head, and its fingerprints."""

    def __init__(self, randomness: random.Random) -> None:
        self._replica: Replica | None = None
        self._fingerprints: dict[tuple[int, int], int] = {}
        self._moved = asyncio.Condition()
        self._rng = np.random.default_rng(randomness.getrandbits(32))
        self.contract: Contract | None = None
        self.joining = asyncio.Semaphore(JOINING_MAX)

    def got_layout(self, layout: TileLayout) -> None:
        """Called once, before the first contribution."""

    def make_body(self) -> bytes:
        """A contribution with at most one vote per tile, which is below the k of any round. Never the same twice: the
        coordinator would suspect the member."""
        assert self._replica is not None
        layout = self._replica.layout
        tiles = layout.matrix_tiles
        chosen = np.sort(self._rng.choice(tiles, min(VOTES, tiles), replace=False))
        components = chosen * MATRIX_COMPONENTS + self._rng.integers(0, MATRIX_COMPONENTS, len(chosen))
        return encode_votes(Votes(components, self._rng.random(len(components)) < 0.5), layout)

    async def arrived(self, name: str, step: int) -> None:
        """Called when a member has received the whole update of a step. The member that keeps the replica applies the
        update after this returns."""

    async def follow(self, name: str, stub: Any, session: Metadata, reply: pb.JoinReply) -> None:
        """Apply updates to the replica until the connection ends."""
        self.contract = parse_contract(reply.contract)
        if self._replica is None:
            data = b"".join([part.data async for part in stub.Snapshot(pb.SnapshotRequest(), metadata=session)])
            replica = _replica_of(self.contract, data)
            self.got_layout(replica.layout)
            async with self._moved:
                self._replica = replica
                self._moved.notify_all()
        replica, demo = self._replica, self.contract.demo
        async for row_bytes, body in updates(stub, session, replica.step):
            row = parse_row(row_bytes)
            await self.arrived(name, row.step)
            async with self._moved:
                replica.apply(decode_update(body, replica.layout, demo.magnitude, demo.update_levels), row.hash)
                self._fingerprints.clear()
                self._moved.notify_all()

    async def fingerprint(self, step: int, nonce: int) -> int | None:
        """Wait for the parameters of a step and return their fingerprint, or None if the replica is already past it."""
        async with self._moved:
            await self._moved.wait_for(lambda: self._replica is not None and self._replica.step >= step)
            assert self._replica is not None
            if self._replica.step > step:
                return None
            if (step, nonce) not in self._fingerprints:
                self._fingerprints[step, nonce] = self._replica.fingerprint(nonce)
            return self._fingerprints[step, nonce]


async def updates(stub: Any, session: Metadata, step: int) -> AsyncIterator[tuple[bytes, bytes]]:
    """Rows and bodies of the updates from a step on."""
    row, body = b"", b""
    async for part in stub.Updates(pb.UpdatesRequest(from_step=step), metadata=session):
        row, body = part.row or row, (b"" if part.row else body) + part.data
        if len(body) == parse_row(row).body_bytes:
            yield row, body


class LightMember:
    """One member with its own connection. `keeps`: it applies updates to the shared replica; other members only read
    them."""

    def __init__(self, invite: Invite, name: str, common: Common, randomness: random.Random, *, keeps: bool) -> None:
        self._invite = invite
        self._name = name
        self._common = common
        self._randomness = randomness
        self._keeps = keeps
        self._key = SecretKey(randomness.randbytes(KEY_BYTES))

    async def run(self) -> None:
        """Take part until cancelled. Reconnects whenever the connection is lost."""
        while True:
            try:
                dialled = await dial(self._invite.address, self._invite, CHANNEL_OPTIONS)
                async with dialled.channel as channel:
                    await self._session(SwarmStub(channel))
            except RemoteError:
                pass  # nobody answers now
            except grpc.aio.AioRpcError as error:
                if error.code() in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED):
                    raise
            await asyncio.sleep(AGAIN_S * (1 + self._randomness.random()))

    async def _session(self, stub: Any) -> None:
        async with self._common.joining:
            reply, session = await join(stub, self._key, self._invite, self._name)
        if self._keeps:
            following = self._common.follow(self._name, stub, session, reply)
        else:
            following = self._read(stub, session, reply.step)
        tasks = [asyncio.ensure_future(following), asyncio.ensure_future(self._attend(stub, session))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, stub: Any, session: Metadata, step: int) -> None:
        async for row, _ in updates(stub, session, step):
            await self._common.arrived(self._name, parse_row(row).step)

    async def _attend(self, stub: Any, session: Metadata) -> None:
        newest = -1
        async for announcement in stub.Attend(pb.AttendRequest(), metadata=session):
            if announcement.state == pb.Announcement.STATE_COMPLETE:
                await asyncio.Event().wait()  # stay connected, so that the page still shows this member
            if announcement.state == pb.Announcement.STATE_ROUND and announcement.round > newest:
                newest = announcement.round
                await self._contribute(stub, session, announcement)

    async def _contribute(self, stub: Any, session: Metadata, announced: pb.Announcement) -> None:
        step = announced.step
        fingerprint = await self._common.fingerprint(step, announced.nonces[0])
        contract = self._common.contract
        if fingerprint is None or contract is None or not announced.lease:
            return
        body = self._common.make_body()
        run = announced.lease[0]
        samples = min(run.count, self._randomness.randint(1, contract.round.samples))
        node_id = self._key.public.node_id
        name = contribution_hash(contract.hash, announced.term, announced.round, node_id, body)
        header = pb.ContributionHeader(
            term=announced.term,
            round=announced.round,
            step=step,
            base_step=step,
            fingerprint=fingerprint,
            samples=samples,
            loss=2 + 3.5 * math.exp(-step / 40) + self._randomness.gauss(0, 0.03),
            payload_bytes=len(body),
            trained_through=run.start + samples - 1,
            signature=self._key.sign(statements.contribution(name, samples)),
        )

        async def parts() -> AsyncIterator[pb.ContributionPart]:
            first: pb.ContributionHeader | None = header
            for data in split_for_upload(body):
                yield pb.ContributionPart(header=first, data=data)
                first = None

        await stub.Contribute(parts(), metadata=session)


def _replica_of(contract: Contract, data: bytes) -> Replica:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.safetensors"
        path.write_bytes(data)
        return load_replica(contract, path)


async def _crowd(invite: Invite, members: int, name: str, seed: int) -> None:
    """Run all members until SIGINT or SIGTERM."""
    randomness = random.Random(seed)
    common = Common(randomness)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    all_of_them = [LightMember(invite, f"{name}-{n}", common, randomness, keeps=n == 1) for n in range(1, members + 1)]
    tasks = [asyncio.ensure_future(member.run()) for member in all_of_them]
    stopped = asyncio.ensure_future(stop.wait())
    done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
    for task in [*tasks, stopped]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in done - {stopped}:
        task.result()


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.speed.light_members", description=__doc__)
    parser.add_argument("invite", metavar="INVITE", help="for as many nodes; or @FILE with it")
    parser.add_argument("--members", type=int, default=200)
    parser.add_argument("--name", default="member", help="members are named NAME-1, NAME-2, …")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    invite = read_destination(arguments.invite).invite
    if invite is None:
        parser.error("give an invite, or @FILE with one")
    asyncio.run(_crowd(invite, arguments.members, arguments.name, arguments.seed))


if __name__ == "__main__":
    main()
