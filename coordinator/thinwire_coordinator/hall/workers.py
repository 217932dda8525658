"""The worker threads for all slow jobs, which keep the event loop free."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import TypeVar

import torch

from thinwire_common.workers import Worker
from thinwire_proto import limits
from thinwire_proto.errors import Locked

log = logging.getLogger("thinwire.coordinator")

Result = TypeVar("Result")


class Job(Enum):
    """Names of all jobs that run on a worker."""

    START = "start"
    """Create, open and replay a run, before the swarm exists."""
    WRITE_UPDATE = "write update"
    WRITE_LEASES = "write leases"
    WRITE_VOID = "write void"
    WRITE_BEAT = "write beat"
    """Write the leases and the directory, or the row of a beat, or the final mean."""
    COUNT_SENT = "count sent"
    """Count how many contributions of a joining node are in an update."""
    COMPARE_CATCH_UP = "compare catch-up"
    """Decide whether a snapshot or the updates are the smaller download to the head."""
    FIND_RECEIPT = "find receipt"
    FIND_CONTRIBUTOR = "find contributor"
    """Decide whether a contribution of a node was ever counted."""
    ADMIT_NODE = "admit node"
    """Decide whether an identity may join, and enrol it."""
    READ_ORDERS = "read orders"
    """Read the bans and the pause that the organizer's commands have written."""
    WRITE_TRUST = "write trust"
    """Write the standings of nodes, and the bans that follow from them."""
    READ_ROW = "read row"
    READ_UPDATE = "read update"
    READ_STATUS = "read status"
    READ_HISTORY = "read history"
    READ_EARLIER = "read earlier"
    """Compute the parameters of an earlier step, to which the run goes back."""
    COMPARE_CONTRACTS = "compare contracts"
    """Say how the contract of a joining node differs."""
    MEASURE_DISKS = "measure disks"
    WEIGH_SNAPSHOT = "weigh snapshot"
    """Check whether the updates since the newest snapshot are as large as it is."""
    WRITE_SNAPSHOT = "write snapshot"
    DELETE_OLD = "delete old"
    WRITE_LOSS = "write loss"
    WRITE_NAMES = "write names"
    FINGERPRINT = "fingerprint"
    APPLY_UPDATE = "apply update"
    FREEZE_REPLICA = "freeze replica"
    WRITE_COPY = "write copy"
    """Write a copy of the replica to a file, for a measurement, a snapshot or an audit."""
    DECODE_VOTES = "decode votes"
    ADD_VOTES = "add votes"
    ENCODE_UPDATE = "encode update"
    FORM_TOPOLOGY = "form topology"
    ADD_DEPOSIT = "add deposit"
    """Add a node's parameters to the final mean."""
    MEASURE_LOSS = "measure loss"
    WRITE_SAMPLE = "write sample"
    COMPARE_VOTES = "compare votes"
    AUDIT = "audit"
    """Recompute the gradients of two leases, and compare two contributions with them."""


JOBS: dict[str, tuple[Job, ...]] = {
    "seal": (Job.START, Job.WRITE_UPDATE, Job.WRITE_LEASES, Job.WRITE_VOID, Job.WRITE_BEAT),
    "query": (
        Job.ADMIT_NODE,
        Job.READ_ORDERS,
        Job.WRITE_TRUST,
        Job.COUNT_SENT,
        Job.COMPARE_CATCH_UP,
        Job.FIND_RECEIPT,
        Job.FIND_CONTRIBUTOR,
        Job.READ_ROW,
    ),
    "fetch": (Job.READ_UPDATE,),
    "watch": (Job.READ_STATUS, Job.READ_HISTORY, Job.MEASURE_DISKS, Job.COMPARE_CONTRACTS),
    "snapshot": (
        Job.WEIGH_SNAPSHOT,
        Job.WRITE_SNAPSHOT,
        Job.DELETE_OLD,
        Job.READ_EARLIER,
        Job.WRITE_LOSS,
        Job.WRITE_NAMES,
    ),
    "replica": (Job.FINGERPRINT, Job.APPLY_UPDATE, Job.FREEZE_REPLICA),
    "copy": (Job.WRITE_COPY,),
    "merge": (Job.DECODE_VOTES, Job.ADD_VOTES, Job.ENCODE_UPDATE, Job.FORM_TOPOLOGY, Job.ADD_DEPOSIT),
    "evaluation": (Job.MEASURE_LOSS, Job.WRITE_SAMPLE),
    "trust": (Job.COMPARE_VOTES, Job.AUDIT),
}
"""The jobs of each worker.

seal: writes that a round cannot end without; once the swarm exists, this worker does nothing else.
query: reads that a joining or waiting node needs an answer from; none is long.
fetch: updates for nodes that catch up; they may come from a remote store.
watch: reads for status, page and metrics, which may be long, and contracts of other runs.
snapshot: writes beside the run, deletions, and reads of what may be deleted.
replica: all access to the parameters.
copy: files of the replica. An update that is to be applied waits for them, so nothing else may hold them up.
merge: payloads.
evaluation: held-out loss and samples.
trust: evidence about nodes.
seal, query, fetch, watch and snapshot each have their own connection to the ledger (`ledger.state_directory`).
"""

WORKER_OF = {job: name for name, jobs in JOBS.items() for job in jobs}
CLOSE_ORDER = ("watch", "fetch", "query", "replica", "copy", "merge", "evaluation", "trust", "snapshot", "seal")


class Workers:
    """All workers. `JOBS` says which one does a job."""

    _closed = False
    _waits = False  # whether a job waits for a lock

    def __init__(self) -> None:
        self._workers = {name: Worker(name) for name in JOBS}

    def submit(self, job: Job, work: Callable[..., Result], *arguments: object) -> asyncio.Future[Result]:
        """Queue a job with its worker. The future may be awaited now, later, or never."""
        return self._workers[WORKER_OF[job]].submit(work, *arguments)

    async def once_unlocked(self, job: Job, work: Callable[..., Result], *arguments: object) -> Result:
        """Do a job as soon as no other program holds the lock of its database. Raises Locked if the workers are closed
        meanwhile."""
        return await self.newest_once_unlocked(job, lambda: partial(work, *arguments))

    async def newest_once_unlocked(self, job: Job, prepare: Callable[[], Callable[[], Result]]) -> Result:
        """The same, for work that `prepare` makes for each try, on the event loop, from what is then the newest."""
        while True:
            try:
                done = await self.submit(job, prepare())
            except Locked as error:
                if not self._waits:
                    log.warning("waiting for a lock: %s", error)
                self._waits = True  # however many jobs wait, the log says it once
                await asyncio.sleep(limits.LOCKED_AGAIN_S)
                if self._closed:
                    raise
            else:
                if self._waits:
                    log.info("the lock is free again")
                self._waits = False
                return done

    def set_threads(self, count: int) -> None:
        """Have torch use so many threads on each worker, from its next job on. A thread that has computed before keeps
        its own number, so setting it on another one is not enough."""
        for worker in self._workers.values():
            worker.submit(torch.set_num_threads, count)

    def depths(self) -> dict[str, int]:
        """The number of jobs that wait or run, by worker."""
        return {name: worker.depth for name, worker in self._workers.items()}

    def close(self) -> None:
        self._closed = True
        for name in CLOSE_ORDER:
            self._workers[name].close()


LARGE = 8_000_000
"""Number of parameters from which all cores are used. An update of 8.4M parameters takes 27 ms on two idle cores, and
50 ms on one."""


def default_threads(parameters: int, cores: int) -> int:
    """The number of torch threads of a run. On a busy machine, small parallel regions cost many times their work
    (docs/log/watching.md), so small models are computed on one thread."""
    return cores if parameters >= LARGE else 1
