"""Makes a node ready to train: it joins, and takes contract, data, parameters and momentum from disk or swarm."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from thinwire_common.logs import tell
from thinwire_node.exchange.port import Admission, Applicant, Exchange, LinkLost, MomentumClaim
from thinwire_node.machine import Machine
from thinwire_node.resources import Room, check_contract, check_needs, declared_needs, room_of
from thinwire_node.session.blob_fetcher import BlobFetcher, BlobUnavailable
from thinwire_node.session.join import fetch_data, fetch_snapshot, join
from thinwire_node.session.record import Record
from thinwire_node.settings import NodeSettings
from thinwire_node.storage.state import KeptMomentum, NodeState
from thinwire_node.training.rules import shapes_kept
from thinwire_node.training.work import Work
from thinwire_proto.contract import Contract
from thinwire_proto.exact.replica import Replica
from thinwire_proto.models import check_manifest
from thinwire_proto.task import DataSource, task_of

log = logging.getLogger("thinwire.node")


@dataclass(frozen=True)
class Ready:
    """The needs of a session beside its exchange."""

    work: Work
    data: DataSource
    fetcher: BlobFetcher


class Bootstrap:
    """The bootstrap of one node. It keeps what it took up, so a later session fetches only what is missing.

    tell_doing: is told in words what the node does. Raises a ThinwireError if a contract on disk asks too much of this
    machine, or if the state directory is damaged.
    """

    def __init__(
        self,
        settings: NodeSettings,
        machine: Machine,
        state: NodeState,
        record: Record,
        randomness: random.Random,
        tell_doing: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._state = state
        self._record = record
        self._random = randomness
        self._tell_doing = tell_doing
        self.work: Work | None = None
        self.contract = state.contract()
        self._data: DataSource | None = None
        self._checked: bytes | None = None  # the contract that was found to fit into this machine
        self._replica: Replica | None = None  # loaded or fetched, not adopted yet
        self._kept: KeptMomentum | None = None  # loaded from disk, not adopted yet
        if self.contract is not None:
            if (room := self._room()) is not None:
                check_needs(self.contract, declared_needs(self.contract), room, settings.options.micro_batch)
            self._replica = state.replica(self.contract)
            self._kept = self._momentum_on_disk(self.contract)

    async def join(self, exchange: Exchange, name: str) -> Admission:
        """Join with what this node has. Raises what `session.join.join` does."""
        held = self._held()
        replica_step = held.step if held else None
        applicant = Applicant(self._state.key, name, self.contract, self._state.head, replica_step, self._claim())
        admission = await join(exchange, self._state, applicant, self._check)
        self.contract = admission.contract
        return admission

    async def take_up(self, exchange: Exchange, admission: Admission) -> Ready:
        """Fetch missing data and parameters, and make the work of a session from them."""
        contract, state = admission.contract, self._state
        urls: tuple[str, ...] = getattr(contract.data, "urls", ())
        addresses = self._settings.options.addresses
        fetcher = BlobFetcher(state.blobs, urls, exchange.blob, self._random, self._record, addresses)
        if admission.drop_momentum:
            await self._drop_momentum(admission.drop_momentum)
        if self._data is None:
            self._tell_doing("fetching the data")
            self._data = await fetch_data(exchange, state, contract)
        held = self._held()
        if admission.take_snapshot or held is None:
            self._tell_doing("fetching a snapshot")
            held = await fetch_snapshot(exchange, state, contract)
        await self._fetch_base(contract, fetcher)
        self._tell_doing("taking up the replica")
        return Ready(await self._adopt(contract, self._data, held), self._data, fetcher)

    def drop_replica(self) -> None:
        """Forget the replica, so that the next session fetches it again."""
        self._replica = None
        if self.work is not None:
            self.work.replica = None

    def _held(self) -> Replica | None:
        """The newest replica in memory."""
        return self.work.replica if self.work and self.work.replica else self._replica

    def _room(self) -> Room | None:
        limits, folder = self._settings.limits, self._settings.state_dir
        return None if limits is None else room_of(limits, folder, self._machine.device)

    def _check(self, contract: Contract) -> None:
        """Check once in each process that this machine can take part. See `check_contract`."""
        if contract.hash == self._checked:
            return
        room, options = self._room(), self._settings.options
        if room is None:
            check_manifest(contract)
        else:
            needs = check_contract(contract, room, options.micro_batch)
            left = room.disk_bytes - needs.state_disk - needs.data_disk
            self._state.blobs.bound(min(options.cache_bytes, left), file_bytes_max=left)
        self._checked = contract.hash

    async def _fetch_base(self, contract: Contract, fetcher: BlobFetcher) -> None:
        """Fetch the blobs that the model itself needs."""
        blobs = task_of(contract.model).blobs()
        if not blobs:
            return
        self._tell_doing("fetching the weights of the base")
        try:
            await fetcher.fetch(blobs)
        except BlobUnavailable as error:
            raise LinkLost(str(error)) from None

    async def _adopt(self, contract: Contract, data: DataSource, replica: Replica) -> Work:
        work = self.work
        if work is None:
            work = self.work = await self._machine.make_work(contract, self._state, data, replica, self._kept)
            if self._kept is not None:
                tell(log, logging.INFO, "node.momentum_taken_up", "momentum taken up")
        elif replica is not work.replica:
            await work.adopt(self._machine.place(replica))
        self._replica = self._kept = None
        return work

    def _claim(self) -> MomentumClaim | None:
        """The claim about this node's momentum for the swarm to check."""
        if self.work is not None:
            # the next contribution reports the samples in the gradient that is not extracted yet
            return MomentumClaim(self.work.trained_through_at_extraction)
        sent = self._state.sent()
        if self._kept is None or sent is None:  # `_momentum_on_disk` keeps neither without the other
            return None
        return MomentumClaim(self._kept.trained_through, tuple(sent))

    def _momentum_on_disk(self, contract: Contract) -> KeptMomentum | None:
        kept = self._state.momentum(shapes_kept(contract))
        if kept is None or self._state.sent() is not None:
            return kept
        why = "sent.json is lost or damaged, so contributions that are in this momentum may be in an update already"
        tell(log, logging.WARNING, "node.momentum_dropped", f"the momentum is dropped: {why}", reason=why)
        self._state.drop_momentum()
        return None

    async def _drop_momentum(self, why: str) -> None:
        tell(log, logging.WARNING, "node.momentum_dropped", f"dropped the momentum: {why}", reason=why)
        self._kept = None
        if self.work is not None:
            await self.work.forget()
        else:
            self._state.drop_momentum()
