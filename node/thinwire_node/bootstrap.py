"""Makes a node ready to train: it joins, and takes contract, data, parameters and momentum from disk or swarm."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass

from thinwire_common.logs import tell
from thinwire_node.exchange.port import Admission, Applicant, Entrance, LinkLost, MomentumClaim
from thinwire_node.machine import Machine
from thinwire_node.peer_settings import PeerSettings
from thinwire_node.resources import Room, cache_bound, check_contract, check_needs, declared_needs, room_of
from thinwire_node.session.blob_fetcher import BlobFetcher, BlobUnavailable, NoRoom
from thinwire_node.session.gossip.training import GossipTraining
from thinwire_node.session.join import fetch_data, fetch_snapshot, join
from thinwire_node.session.record import Record
from thinwire_node.settings import NodeSettings
from thinwire_node.storage.gossip_journal import GossipJournal, JournalEntry
from thinwire_node.storage.state import KeptMomentum, NodeState
from thinwire_node.training.rules import shapes_kept
from thinwire_node.training.work import Work
from thinwire_proto.contract import Contract
from thinwire_proto.errors import MEND_DISK, LocalError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.models import check_manifest
from thinwire_proto.task import DataSource, task_of

log = logging.getLogger("thinwire.node")

GOSSIP = "gossip"
"""The exchange of a swarm without a centre."""
NOTHING_TRAINED = MomentumClaim(None)
"""The claim of a node that has extracted nothing yet, such as one that only waited. To drop its momentum is no loss."""


@dataclass(frozen=True)
class Ready:
    """The needs of a session beside its exchange."""

    work: Work | GossipTraining
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
        self.training: GossipTraining | None = None
        """In place of `work` in a swarm without a centre."""
        self.contract = state.contract()
        self._data: DataSource | None = None
        self._checked: bytes | None = None  # the contract that was found to fit into this machine
        self._replica: Replica | None = None  # loaded or fetched, not adopted yet
        self._kept: KeptMomentum | None = None  # loaded from disk, not adopted yet
        self._entry: JournalEntry | None = None  # the same, in a swarm without a centre
        if self.contract is not None:
            if (room := self._room()) is not None:
                check_needs(self.contract, declared_needs(self.contract), room, settings.options.micro_batch)
            self._replica = state.replica(self.contract)
            if self.contract.exchange.kind == GOSSIP:
                self._entry = GossipJournal(state, self.contract.hash).read()
            else:
                self._kept = self._momentum_on_disk(self.contract)

    async def join(self, exchange: Entrance, name: str) -> Admission:
        """Join with what this node has. Raises what `session.join.join` does."""
        held = self._held()
        replica_step = held.step if held else None
        applicant = Applicant(self._state.key, name, self.contract, self._state.head, replica_step, self._claim())
        admission = await join(exchange, self._state, applicant, self._check)
        self.contract = admission.contract
        return admission

    async def take_up(self, exchange: Entrance, admission: Admission) -> Ready:
        """Fetch missing data and parameters, and make the work of a session from them."""
        contract, state = admission.contract, self._state
        urls: tuple[str, ...] = getattr(contract.data, "urls", ())
        addresses = self._settings.options.addresses
        fetcher = BlobFetcher(state.blobs, urls, exchange.blob, self._random, self._record, addresses)
        gossips = contract.exchange.kind == GOSSIP
        if admission.drop_momentum and not gossips:
            await self._drop_momentum(admission.drop_momentum)
        if self._data is None:
            self._tell_doing("fetching the data")
            self._data = await fetch_data(exchange, state, contract)
        # first, since it may take long and fail: a snapshot that is fetched after it is newer, and not fetched in vain
        await self._fetch_base(contract, fetcher)
        held = self._held()
        if held is None or (admission.take_snapshot and not gossips):
            self._tell_doing("fetching a snapshot")
            held = await fetch_snapshot(exchange, state, contract)
        self._tell_doing("taking up the replica")
        taken = await (self._open if gossips else self._adopt)(contract, self._data, held)
        return Ready(taken, self._data, fetcher)

    def drop_replica(self) -> None:
        """Forget the replica, so that the next session fetches it again."""
        self._replica = None
        if self.work is not None:
            self.work.replica = None

    def _held(self) -> Replica | None:
        """The newest replica in memory."""
        taken = self.work or self.training
        return taken.replica if taken and taken.replica else self._replica

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
            bound = cache_bound(options.cache_bytes, needs.base_disk, left)
            self._state.blobs.bound(bound, file_bytes_max=left)
        self._checked = contract.hash

    async def _fetch_base(self, contract: Contract, fetcher: BlobFetcher) -> None:
        """Fetch the blobs that the model itself needs. Raises LocalError if they do not fit onto this disk."""
        blobs = task_of(contract.model).blobs()
        if not blobs:
            return
        self._tell_doing("fetching the weights of the base")
        try:
            await fetcher.fetch(blobs)
        except NoRoom as error:
            raise LocalError(f"the weights of the base: {error}; {MEND_DISK}") from None
        except BlobUnavailable as error:
            raise LinkLost(str(error)) from None

    async def _open(self, contract: Contract, data: DataSource, first: Replica) -> GossipTraining:
        """The iterations of a node in a swarm without a centre."""
        if self.training is None:
            options = self._settings.options
            self.training = await self._machine.make_training(
                contract, self._state, data, first, self._entry, self._record, options
            )
            self._replica = self._entry = None
        return self.training

    async def _adopt(self, contract: Contract, data: DataSource, replica: Replica) -> Work:
        work = self.work
        if work is None:
            self._tell_unused_options()
            work = self.work = await self._machine.make_work(contract, self._state, data, replica, self._kept)
            if self._kept is not None:
                tell(log, logging.INFO, "node.momentum_taken_up", "momentum taken up")
        elif replica is not work.replica:
            await work.adopt(self._machine.place(replica))
        self._replica = self._kept = None
        return work

    def _tell_unused_options(self) -> None:
        if self._settings.options.peers != PeerSettings():
            log.warning("--peers has no effect in this run: it has a centre, and nodes send each other nothing")

    def _claim(self) -> MomentumClaim | None:
        """The claim about this node's momentum for the swarm to check."""
        if self.training is not None:
            return MomentumClaim(self.training.work.saved.trained_through)
        if self._entry is not None:
            return MomentumClaim(self._entry.trained_through)
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
        if self._claim() != NOTHING_TRAINED:
            tell(log, logging.WARNING, "node.momentum_dropped", f"dropped the momentum: {why}", reason=why)
        self._kept = None
        if self.work is not None:
            await self.work.forget()
        else:
            self._state.drop_momentum()
