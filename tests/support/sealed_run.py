"""Creates a short run without sockets: the coordinator's own code seals synthetic votes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np

from support.new_state import make_state
from support.small import random_votes
from thinwire_coordinator.hall.leases import Leases
from thinwire_coordinator.hall.ledger.signatures import NodeSignature
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_coordinator.hall.workers import Job, Workers
from thinwire_coordinator.star.feed import Feed
from thinwire_coordinator.star.messages import UpdateMessages
from thinwire_coordinator.star.sealing import Sealer
from thinwire_coordinator.verify import verify
from thinwire_proto.exact.votes import Merger
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import KEY_BYTES, SecretKey
from thinwire_proto.wire.rows import Counted, Row

COLUMNS = (
    *("step", "round", "term", "nonce", "fingerprint", "body_hash", "body_bytes", "counted", "previous", "hash"),
    "extras",
)


def node_key(seed: int) -> SecretKey:
    """The key of the node with this number: always the same."""
    return SecretKey(seed.to_bytes(KEY_BYTES, "big"))


def counted(seed: int) -> Counted:
    return Counted(node_key(seed).public.node_id, np.random.default_rng(seed).bytes(32), 8, 8)


def signed(seed: int) -> NodeSignature:
    """The node's signature of `counted(seed)`."""
    key, entry = node_key(seed), counted(seed)
    return NodeSignature(key.public, key.sign(statements.contribution(entry.contribution, entry.samples)))


def make_run(folder: Path, steps: int) -> None:
    """Seal `steps` updates of two contributions each, with a snapshot at step 2."""
    asyncio.run(_seal(make_state(folder), steps))


async def _seal(state: RunState, steps: int) -> None:
    workers = Workers()
    replica = state.load_snapshot(0)
    leases = Leases()

    async def read(step: int) -> UpdateMessages:
        raise AssertionError("no node follows this run")

    sealer = Sealer(state, replica, Feed(read, 0), workers, time.monotonic)
    for step in range(steps):
        fingerprint = await workers.submit(Job.FINGERPRINT, replica.fingerprint, 1000 + step)
        merger = Merger(replica.layout.components)
        seeds = (2 * step, 2 * step + 1)
        for seed in seeds:
            merger.add(random_votes(replica.layout, state.contract.demo.k, seed), 8)
        leases.grant("a" * 32, 16, step)
        leases.report("a" * 32, 16 * step + 15)
        leases.settle("a" * 32)
        row = Row(step, step, 1, 1000 + step, fingerprint, b"", 0, tuple(map(counted, seeds)), b"")
        await (await sealer.seal(row, tuple(map(signed, seeds)), merger, leases.packed)).applied
        if step == 1:
            state.save_snapshot(replica)
    workers.close()
    state.close()


def verified(folder: Path) -> str:
    """Verify a run. Returns the lines that `verify` prints."""
    lines: list[str] = []
    verify(folder, lines.append)
    return "\n".join(lines)
