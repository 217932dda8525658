"""A short run without sockets: made-up votes, sealed by the coordinator's own code."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from support.small import random_replica, random_votes, small_contract, small_corpus
from thinwire_coordinator.feed import Feed, SealedUpdate
from thinwire_coordinator.sealing import Accepted, SealedRound, Sealer
from thinwire_coordinator.state import State, open_state
from thinwire_coordinator.workers import Workers
from thinwire_proto.rows import Counted, genesis

COLUMNS = ("step", "round", "epoch", "nonce", "fingerprint", "body_hash", "body_bytes", "counted", "previous", "hash")


def make_state(folder: Path) -> State:
    """A state directory with a first state and nothing sealed."""
    contract, corpus = small_contract(), small_corpus()
    (folder / "corpus.zst").write_bytes(corpus.pack())
    (folder / "snapshots").mkdir()
    replica = random_replica(contract)
    replica.head = genesis(contract.hash, replica.state_hash())
    replica.save(folder / "snapshots" / "0.safetensors")
    (folder / "contract.json").write_bytes(contract.canonical())
    return open_state(folder)


def accepted(state: State, seed: int) -> Accepted:
    votes = random_votes(state.load_snapshot(0).layout, state.contract.demo.k, seed)
    name = np.random.default_rng(seed).bytes(32)
    return Accepted(Counted(f"{seed:032x}", name, 8, 8), votes, 5.0)


def make_run(folder: Path, steps: int) -> None:
    """Seal `steps` updates of two contributions each, with a snapshot at step 2."""
    asyncio.run(_seal(make_state(folder), steps))


async def _seal(state: State, steps: int) -> None:
    workers = Workers()
    replica = state.load_snapshot(0)

    async def read(step: int) -> SealedUpdate:
        raise AssertionError("nobody follows")

    sealer = Sealer(state, replica, Feed(read, 0), workers)
    for step in range(steps):
        fingerprint = await workers.replica.submit(replica.fingerprint, 1000 + step)
        sealed = SealedRound(round=step, epoch=1, step=step, nonce=1000 + step, fingerprint=fingerprint)
        pair = [accepted(state, 2 * step), accepted(state, 2 * step + 1)]
        await sealer.seal(sealed, pair, 16 * (step + 1))
        if step == 1:
            await workers.replica.submit(lambda: None)
            state.save_snapshot(replica)
    workers.close()
    state.close()
