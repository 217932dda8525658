"""The simulated coordinator: the real state directory, ledger, swarm and service. Its workers take virtual time and
stop at once when the process is killed."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bench.joining import Everybody
from simulator.replicas import SharedReplica, SharedReplicas
from simulator.synthetic import VOTES
from thinwire_coordinator.hall.access.door import Candidate, Denied, DoorReason
from thinwire_coordinator.hall.hall import Surroundings, open_hall
from thinwire_coordinator.hall.ledger.retention import Retention
from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_coordinator.hall.measuring import HeldOut, Measuring
from thinwire_coordinator.hall.standby.keeper import Keeper
from thinwire_coordinator.hall.standby.standing import check_leads
from thinwire_coordinator.hall.workers import JOBS, WORKER_OF, Job, Workers
from thinwire_coordinator.star.calls import StarService
from thinwire_coordinator.star.feed import CACHE_BYTES_MAX
from thinwire_coordinator.star.kind import KIND
from thinwire_coordinator.star.star import Star
from thinwire_coordinator.star.trust.observer import TrustSettings
from thinwire_coordinator.star.upkeep import StarUpkeep
from thinwire_proto.contract import Contract, CorpusSpec, Parameter, RunSpec
from thinwire_proto.data.corpus import Corpus, CorpusFile
from thinwire_proto.exact.replica import Replica
from thinwire_proto.models import build_decoder, initial_state, manifest
from thinwire_proto.wire.rows import genesis

Result = TypeVar("Result")

DISK_S = 0.004
"""Virtual seconds of a synced write or a query of the ledger."""
COST_S = dict.fromkeys([*JOBS["seal"], *JOBS["query"], *JOBS["snapshot"]], DISK_S)
COST_S |= dict.fromkeys([Job.READ_UPDATE, *JOBS["replica"]], 0.001)
"""Virtual seconds of each kind of job. Other jobs take no time, because their payloads are tiny."""
MODEL = {"width": 2, "layers": 1, "heads": 1, "hidden": 2, "context": 8}
"""The smallest possible model. The simulation does not depend on the model."""
DEMO = {"k": VOTES, "magnitude": "sign"}
"""Synthetic votes need this k. The other fields are explicit, so that golden histories do not depend on defaults."""


NEVER = 1 << 30
"""Steps between measurements of the held-out loss: more than any run has."""


def make_state(folder: Path, spec: dict[str, Any], seed: int) -> None:
    """Create a state directory with an initial state and no sealed update."""
    text = np.random.default_rng(seed).integers(97, 123, 20_000, dtype=np.uint8).tobytes()
    corpus = Corpus([CorpusFile("a.txt", text, False), CorpusFile("b.txt", text[:2000], True)])
    data = CorpusSpec(seed=seed, corpus_hash=corpus.hash, corpus_bytes=corpus.size, train_bytes=len(corpus.train))
    demo = DEMO | spec.get("demo", {})
    run = RunSpec.model_validate({"model": MODEL, "data": data} | spec | {"demo": demo})
    sections = run.model_dump() | {"parameters": (Parameter(name="x", shape=(1,)),)}
    contract = Contract.model_validate(sections)
    contract = contract.model_copy(update={"parameters": manifest(build_decoder(contract.model, "meta"))})
    replica = Replica(contract, initial_state(contract.model, seed), 0, b"\0" * 32)
    replica.head = genesis(contract.hash, replica.state_hash())
    (folder / "snapshots").mkdir(parents=True)
    (folder / "corpus.zst").write_bytes(corpus.pack())
    replica.save(folder / "snapshots" / "0.safetensors")
    (folder / "contract.json").write_bytes(contract.written)


class VirtualWorker:
    """Runs each job when its virtual time has passed, unless the process was killed before."""

    def __init__(self) -> None:
        self._free_at = 0.0
        self._queue: deque[tuple[asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]] = deque()
        self.dead = False

    def submit(self, cost_s: float, work: Callable[..., Result], *arguments: object) -> asyncio.Future[Result]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Result] = loop.create_future()
        self._free_at = max(loop.time(), self._free_at) + cost_s
        self._queue.append((future, work, arguments))
        loop.call_at(self._free_at, self._finish)
        return future

    def _finish(self) -> None:
        future, work, arguments = self._queue.popleft()  # timers of the same moment fire in any order
        if self.dead or future.cancelled():
            return
        try:
            future.set_result(work(*arguments))
        except Exception as error:  # noqa: BLE001 - the awaiting task gets the error, as from a thread
            future.set_exception(error)


class VirtualWorkers(Workers):
    def __init__(self) -> None:
        self._virtual = {name: VirtualWorker() for name in JOBS}

    def submit(self, job: Job, work: Callable[..., Result], *arguments: object) -> asyncio.Future[Result]:
        return self._virtual[WORKER_OF[job]].submit(COST_S.get(job, 0.0), work, *arguments)

    def depths(self) -> dict[str, int]:
        return dict.fromkeys(self._virtual, 0)

    def close(self) -> None:
        for worker in self._virtual.values():
            worker.dead = True


class Gate(Everybody):
    """Admits all but the banned nodes."""

    def __init__(self) -> None:
        self.banned: set[str] = set()

    def would_admit(self, candidate: Candidate, now: float) -> Denied | None:
        return self.admit(candidate, now)

    def admit(self, candidate: Candidate, now: float) -> Denied | None:
        return REFUSED if candidate.public_key.node_id in self.banned else None


REFUSED = Denied(DoorReason.BANNED, "banned by the scenario")


class SimCoordinator:
    """One life of the coordinator's process. keep: see `retention`; None: deletes nothing and makes no snapshot.
    after_standby: as `--seal-after-standby`."""

    def __init__(
        self,
        folder: Path,
        shared: SharedReplicas,
        randomness: random.Random,
        wait_for: int,
        keep: int | None = None,
        *,
        after_standby: bool = False,
    ) -> None:
        standing = check_leads(folder)
        self.workers = VirtualWorkers()
        self.state: RunState = open_state(folder)
        replica = SharedReplica(shared, KIND.at_head(self.state))
        time = asyncio.get_running_loop().time
        born = time()  # its machine has just booted, so its monotonic clock starts now
        cache_bytes_max = CACHE_BYTES_MAX if keep is None else 0  # without a cache, nodes also ask for deleted updates
        surroundings = Surroundings(lambda: time() - born, time, randomness)
        hall = open_hall(self.state, replica, self.workers, surroundings, standing.promoted)
        self.swarm = Star(
            hall,
            wait_for,
            cache_bytes_max=cache_bytes_max,
            trust=TrustSettings(randomness=random.Random(2)),
            keeper=Keeper(self.state, self.workers, hall.now, needed=after_standby),
        )
        self.gate = Gate()
        door = hall.door(self.gate, random.Random(1))
        self.service: StarService | None = StarService(self.swarm, door)  # type: ignore[abstract]
        if keep is not None:
            held_out = HeldOut(self.state.contract, self.state.data, self.state.blobs)
            measuring = Measuring(hall, held_out, samples=False)
            self.swarm.keep_up = StarUpkeep(hall, measuring, self.swarm.feed, Retention(self.state, keep), NEVER)
            self.swarm.tasks.keep(self.swarm.upkeep())

    def kill(self) -> None:
        """Act as kill -9: the process writes and decides nothing any more."""
        self.workers.close()
        self.service = None
        self.swarm.stop()
        self.state.close()
