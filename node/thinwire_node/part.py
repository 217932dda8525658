"""The port of what a node does in a run. Each kind of exchange has its own: see `kinds`.

A part outlives the sessions with the coordinator. It owns the replica, the lease, the compute thread and its state on
disk.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torch import Tensor

from thinwire_common.logs import tell
from thinwire_node.exchange.port import Entrance, MomentumClaim, Surroundings
from thinwire_node.report import PartView
from thinwire_node.session.blob_fetcher import BlobFetcher
from thinwire_node.training.lease import Lease
from thinwire_node.training.threads import NodeJob, Threads
from thinwire_proto.clean_text import clean_text
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ReplicaError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.task import DataSource

log = logging.getLogger("thinwire.node")
Result = TypeVar("Result")


class ParametersDiffer(ReplicaError):
    """The replica's bits differ from the swarm's."""


class WentBack(ReplicaError):
    """The swarm went back to an earlier step, so the replica and the momentum are of steps that were given up."""


class Session(Protocol):
    """One session with the coordinator."""

    async def run(self) -> None:
        """Take part until the run is complete or enough is done. Raises LinkLost, Refused, PayloadError, LocalError or
        ReplicaError."""

    def leave(self) -> None:
        """Stop training. `run` then returns."""

    def finish(self) -> None:
        """Stop training once the work at hand has been delivered. `run` then returns."""

    def rest(self) -> None:
        """Stop training. `run` then returns without waiting for an outcome; the next session asks for it."""

    @property
    def trained_through(self) -> int | None:
        """The last sample position in what the node keeps."""


class PartWork(ABC):
    """What a part does once it has data and parameters: its lease, and the compute thread that owns all else.

    unit: what a step of the run is called. take_contract: takes an amended contract, or raises a ThinwireError if this
    machine cannot go on under it. The compute thread calls it."""

    unit = "step"

    def __init__(
        self, contract: Contract, threads: Threads, lease: Lease, take_contract: Callable[[Contract], None]
    ) -> None:
        self.contract = contract
        """With all amendments that are known, also those of steps that the node has not come to."""
        self.lease = lease
        self.jobs = 0
        """Jobs of the compute thread that wait or run."""
        self._threads = threads
        self._take_contract = take_contract

    def run(self, job: NodeJob, work: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        """Queue a job for the compute thread."""
        self.jobs += 1
        done = self._threads.compute.run(job, work, *arguments)
        done.add_done_callback(self._job_done)
        return done

    def _job_done(self, done: asyncio.Future[Any]) -> None:
        self.jobs -= 1

    async def amend(self, contract: Contract) -> None:
        """Go on under an amended contract, which comes before what it is in force for. Raises a ThinwireError if this
        machine cannot."""
        if contract != self.contract:
            await self.run(NodeJob.AMEND, self._amend, contract)

    def _amend(self, contract: Contract) -> None:
        """An amendment is one job, which leaves nothing half amended if it is cancelled before it begins. Nothing
        changes amid a micro-batch, which the ranks of a node have to divide alike."""
        self._take_contract(contract)
        for amendment in contract.amendments:
            if amendment not in self.contract.amendments:
                words = clean_text(amendment.in_words)
                text = f"the organizer has amended the run from {self.unit} {amendment.step} on: {words}"
                tell(log, logging.INFO, "node.amended", text, step=amendment.step, reason=words)
        self.contract = contract
        self._amended(contract)

    @abstractmethod
    def _amended(self, contract: Contract) -> None:
        """Take the contract that is in force now, in the compute thread."""

    def close(self) -> None:
        self._threads.close()


class Part(ABC):
    """On construction, a part reads what an earlier process has left on disk."""

    takes_snapshots = True
    """Whether a newer snapshot may take the place of the replica."""
    replica: Replica | None = None
    """The newest replica in memory."""
    work: PartWork | None = None
    """None until there are data and parameters."""

    def __init__(self, settings: Any) -> None:
        """settings: `kinds.PartSettings`."""
        self._settings = settings

    @staticmethod
    @abstractmethod
    async def open_exchange(surroundings: Surroundings) -> Entrance:
        """An exchange for the sessions of this part. Raises ConfigError or LinkLost."""

    @staticmethod
    @abstractmethod
    def undivided(contract: Contract) -> str:
        """Why each process of a node must hold the whole model; empty if they can divide it."""

    @staticmethod
    @abstractmethod
    def parameters(folder: Path, contract: Contract) -> Mapping[str, Tensor]:
        """The newest parameters in a state directory, by name, also while a node runs on it. Raises ReplicaError, or
        FileNotFoundError if there are none yet."""

    @abstractmethod
    def claim(self) -> MomentumClaim | None:
        """The claim about what this node keeps, for the coordinator to check."""

    async def amend(self, contract: Contract) -> None:
        """Take the contract that is in force now. Raises a ThinwireError if this machine cannot go on under it."""
        if self.work is not None:
            await self.work.amend(contract)
        else:
            self._settings = replace(self._settings, contract=contract)

    async def drop_momentum(self, why: str) -> None:  # noqa: B027 - a part may have none
        """Drop the momentum, because the coordinator says so."""

    @abstractmethod
    async def take_up(self, data: DataSource, replica: Replica) -> None:
        """Make the work from the data and this replica, or go on with the work there is. Raises ConfigError."""

    @abstractmethod
    def session(self, exchange: Any, head_step: int, data: DataSource, fetcher: BlobFetcher) -> Session:
        """A session over an exchange that the part's kind has opened. head_step: steps that are sealed."""

    async def failure(self) -> None:  # noqa: B027 - most end in a session alone
        """Raise what has ended the part outside of a session; wait for ever if nothing can."""

    def drop_replica(self) -> None:  # noqa: B027
        """Forget the replica, so that the next session fetches it again."""

    def interrupt(self) -> None:  # noqa: B027
        """Abort the running micro-batch, because the node is about to leave."""

    async def rest(self) -> None:  # noqa: B027 - a part may keep its work as it is
        """Save what shall last, because the node is about to rest, perhaps for hours. No session runs."""

    @abstractmethod
    async def stop(self) -> None:
        """Save what shall last, and stop."""

    def close(self) -> None:
        """End the threads."""
        if self.work is not None:
            self.work.close()

    @abstractmethod
    def done_in_words(self) -> str:
        """What this process has done in the run, for the last line."""

    @abstractmethod
    def view(self) -> PartView: ...
