"""Makes a node ready to train: it joins, and takes contract, data, parameters and momentum from disk or swarm."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from thinwire_common.logs import tell
from thinwire_common.units import human_bytes
from thinwire_node import resources
from thinwire_node.exchange.port import Admission, Applicant, BeyondTheEnd, Entrance, LinkLost, Refused
from thinwire_node.kinds import Machine, PartSettings, name_of
from thinwire_node.limits.throttle import Throttle
from thinwire_node.part import Part
from thinwire_node.session.blob_fetcher import BaseSources, BlobFetcher, BlobUnavailable, NoRoom
from thinwire_node.session.record import Record
from thinwire_node.settings import NodeSettings
from thinwire_node.storage.base_files import BaseFilesHere
from thinwire_node.storage.state import DATA_FILE, DATA_PART, REPLICA_FILE, NodeState
from thinwire_node.training.compute import COMPILER_BYTES
from thinwire_node.training.micro_batch import SAMPLES_MAX
from thinwire_proto.contract import Contract
from thinwire_proto.errors import MEND_DISK, LocalError, PayloadError
from thinwire_proto.exact.replica import Replica, load_replica
from thinwire_proto.models import check_manifest
from thinwire_proto.needs import SAMPLES_MAX_CARD
from thinwire_proto.task import DataSource, data_kind_of, task_of

log = logging.getLogger("thinwire.node")
Result = TypeVar("Result")


class RunBranched(LinkLost):
    """The coordinator now has a branch of the run that this node knows."""


class Replaced(LinkLost):
    """Another machine was promoted to be the coordinator after this one."""


@dataclass(frozen=True)
class Ready:
    """The needs of a session beside its exchange."""

    part: Part
    data: DataSource
    fetcher: BlobFetcher


class Bootstrap:
    """The bootstrap of one node. It keeps what it took up, so a later session fetches only what is missing.

    tell_doing: is told in words what the node does. throttle: paces its connections, if the owner limits the traffic.
    Raises a ThinwireError if a contract on disk asks too much of this machine, or if the state directory is damaged."""

    def __init__(
        self,
        settings: NodeSettings,
        machine: Machine,
        state: NodeState,
        record: Record,
        randomness: random.Random,
        tell_doing: Callable[[str], None],
        throttle: Throttle | None = None,
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._state = state
        self._record = record
        self._random = randomness
        self._tell_doing = tell_doing
        self._throttle = throttle
        self._bases = BaseFilesHere(settings.bases)
        self.part: Part | None = None
        """None until the run is known."""
        self.contract = state.contract()
        self._data: DataSource | None = None
        self._checked: Contract | None = None  # what was found to fit into this machine
        self._replica: Replica | None = None  # loaded or fetched, not taken up yet
        if self.contract is not None:
            if (room := self._room(self.contract)) is not None:
                needs, samples = resources.declared_needs(self.contract), self._samples_max
                self._as_it_fits(self.contract, partial(resources.check_needs, self.contract, needs, room, samples))
            self._replica = state.replica(self.contract, is_mapped=self._is_divided)
            self.part = self._make_part(self.contract)

    def _take_contract(self, contract: Contract) -> None:
        self._check(contract)
        if self._data is not None:
            self._data.amend(contract)
        self.contract = contract

    def _make_part(self, contract: Contract) -> Part:
        settings, machine = self._settings, self._machine
        take, options, address = self._take_contract, settings.options, settings.address
        hold, ranks = self._throttle, settings.ranks
        about = PartSettings(contract, self._state, machine, self._record, options, address, take, hold, ranks)
        return machine.kind(name_of(contract))(about)

    async def join(self, exchange: Entrance, name: str) -> Admission:
        """Join with what this node has, and store the run's contract. Raises LinkLost, Refused or ContractError, or a
        ThinwireError if this machine cannot take part in the run."""
        kept, held = self.contract, self._held()
        replica_step = held.step if held else None
        claim = self.part.claim() if self.part is not None else None
        state, known = self._state, self._state.known
        applicant = Applicant(state.key, name, kept, state.head, replica_step, claim, known.term)
        admission = await exchange.join(applicant)
        theirs = admission.contract
        if kept is not None and theirs.hash != kept.hash:
            if theirs.lineage is not None and kept.hash.hex() in theirs.lineage.contracts:
                raise RunBranched(
                    f"the run goes on as a branch from step {theirs.lineage.step}, so the node begins anew there; its "
                    "data stay, and what it kept of the run before is dropped"
                )
            raise Refused(
                "the coordinator accepted this node's contract and then sent a different one; to take part in the "
                "coordinator's run, give another --state-dir"
            )
        # a stored contract is checked again, because the node may have been upgraded
        await asyncio.to_thread(self._check, theirs)
        self._follow_promotion(admission)
        if kept is None:
            self._state.write("contract.json", theirs.written)
        self.contract = theirs
        return admission

    def _follow_promotion(self, admission: Admission) -> None:
        """Take the coordinator's term. Raises Replaced if it is older than a promotion that this node knows."""
        known, term = self._state.known, admission.term
        if known.term.is_newer_than(term.number):
            raise Replaced(
                f"this coordinator was replaced by a machine that was promoted (term {known.term.number:,}), and what "
                "it seals is not taken"
            )
        if admission.rewound:
            if not term.is_newer_than(known.term.number):
                raise Refused("the coordinator lacks rows that this node has seen, and proves no newer promotion")
            head = self._state.head.step if self._state.head else 0
            reason = f"step {head} was lost with the coordinator before; the one that was promoted has {admission.step}"
            tell(log, logging.WARNING, "node.resync", f"{reason}; going on from there", reason=reason)
            self._record.resyncs += 1
            self.drop_replica()
            self._state.forget_rows()  # before the term is known: without it, the coordinator says so again
        if term.is_newer_than(known.term.number):
            self._state.keep_known(replace(known, term=term))

    async def take_up(self, exchange: Entrance, admission: Admission) -> Ready:
        """Fetch missing data and parameters, and make the work of a session from them."""
        contract, state = admission.contract, self._state
        urls: tuple[str, ...] = getattr(contract.data, "urls", ())
        addresses = self._settings.options.addresses
        task, paced = task_of(contract.model), self._throttle
        base = BaseSources(task.blob_names(), task.blob_urls(), self._bases)
        fetcher = BlobFetcher(state.blobs, urls, exchange.blob, self._random, self._record, addresses, paced, base)
        part = self.part = self.part or self._make_part(contract)
        await part.amend(contract)
        if admission.drop_momentum:
            await part.drop_momentum(admission.drop_momentum)
        if self._data is None:
            self._tell_doing("fetching the data")
            self._data = await fetch_data(exchange, state, contract)
        self._data.amend(contract)
        # first, since it may take long and fail: a snapshot that is fetched after it is newer, and not fetched in vain
        await self._fetch_base(contract, fetcher)
        held = self._held()
        if held is None or (admission.take_snapshot and part.takes_snapshots):
            self._tell_doing("fetching a snapshot")
            held = await fetch_snapshot(exchange, state, contract, is_mapped=self._is_divided)
        self._tell_doing("taking up the replica")
        await part.take_up(self._data, held)
        self._replica = None
        return Ready(part, self._data, fetcher)

    def drop_replica(self) -> None:
        self._replica = None
        if self.part is not None:
            self.part.drop_replica()

    @property
    def _is_divided(self) -> bool:
        """Whether no process of this node holds the whole model."""
        return self._settings.ranks is not None and self._settings.ranks.is_sharded

    def _held(self) -> Replica | None:
        return (self.part.replica if self.part is not None else None) or self._replica

    def _room(self, contract: Contract) -> resources.Room | None:
        limits, folder, ranks = self._settings.limits, self._settings.state_dir, self._settings.ranks
        here = 1 if ranks is None else ranks.here
        if limits is None:
            return None
        room = resources.room_of(limits, folder, self._machine.device, here)
        if ranks is not None:
            room = replace(resources.least_room(room, ranks.rooms(limits.memory_max)), of_several=True)
        room = resources.with_base_here(room, contract, folder, self._settings.bases)
        if self._settings.options.compiles and self._machine.device == "cpu":
            return replace(room, memory_bytes=room.memory_bytes - COMPILER_BYTES)
        return room

    @property
    def _samples_max(self) -> int:
        """The largest part of a micro-batch that the volunteer wants in a process."""
        default = SAMPLES_MAX if self._machine.device == "cpu" else SAMPLES_MAX_CARD
        wanted = self._settings.options.micro_batch
        return -(-wanted // self._record.ranks) if wanted else default

    def _check(self, contract: Contract) -> None:
        """Check once in each process that this machine can take part. See `check_contract`."""
        if contract == self._checked:
            return
        room, options = self._room(contract), self._settings.options
        if room is None:
            check_manifest(contract)
            self._record.base_bits = options.base_bits if task_of(contract.model).base_bits else None
        else:
            bits = self._record.base_bits or options.base_bits  # those that the model is loaded in stay
            check = partial(resources.check_contract, contract, room, self._samples_max, base_bits=bits)
            needs, fits = self._as_it_fits(contract, check)
            self._tell_base(contract, needs)
            self._record.at_once.fit(fits.samples or self._samples_max, checkpoints=fits.checkpoints)
            how = " if activations are computed again in the backward pass" if fits.checkpoints else ""
            whose = "the memory" if self._record.ranks == 1 else "the memory of each process"
            log.info("%d samples at once fit into %s%s", self._record.at_once.samples, whose, how)
            self._record.moments_on_host = fits.moments_on_host
            if fits.moments_on_host:
                log.info("%s", f"{resources.MOMENTS_ON_HOST} ({human_bytes(needs.moments)})")
            left = room.disk_bytes - needs.state_disk - needs.data_disk
            bound = resources.cache_bound(options.cache_bytes, needs.base_disk, left)
            self._state.blobs.bound(bound, file_bytes_max=left)
        self._checked = contract

    def _tell_base(self, contract: Contract, needs: resources.Needs) -> None:
        """Keep the bits of the base, and say them."""
        model = needs.model
        if model.bits is None or self._record.base_bits is not None:
            return
        self._record.base_bits = model.bits
        log.info("the frozen base takes %s of memory, in %d bits a parameter", human_bytes(model.frozen), model.bits)
        if words := resources.cards_that_train(contract):
            log.info("cards that can train this run: %s", words)

    def _as_it_fits(self, contract: Contract, check: Callable[[int], Result]) -> Result:
        """Check with the whole model in each process, and if that does not fit, with one that they divide. check: takes
        the number of parts. Raises what it does, for the whole model."""
        ranks = self._settings.ranks
        if ranks is None:
            return check(1)
        if self._checked is not None:  # the processes hold it in one way or the other by now
            return check(ranks.size if ranks.is_sharded else 1)
        try:
            ranks.is_sharded = False
            return check(1)
        except LocalError as error:
            try:
                found = check(ranks.size)
            except LocalError:
                raise error from None
            if why := self._machine.kind(name_of(contract)).undivided(contract):
                raise LocalError(
                    f"{why}, so each of this node's {ranks.size} processes must hold the whole model; give --device "
                    f"larger cards, or fewer processes on the processor: {error}"
                ) from None
            ranks.is_sharded = True
            return found

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


async def fetch_data(exchange: Entrance, state: NodeState, contract: Contract) -> DataSource:
    """Load the data from the state directory, or fetch it from the swarm. Resumes a partial download."""
    data = await asyncio.to_thread(state.data, contract)
    if data is None:
        kind = data_kind_of(contract.data)
        size_max = kind.file_bytes_max(contract.data)
        text = f"fetching the data's file (at most {size_max:,} bytes); shards that it lists come as they are needed"
        log.info("%s", text)
        passing = state.path(DATA_PART)
        try:
            try:
                await exchange.corpus(contract, passing)
            except BeyondTheEnd:  # the partial file would be too long at the next attempt as well
                passing.unlink()
                await exchange.corpus(contract, passing)
            data = await asyncio.to_thread(lambda: kind.open(passing.read_bytes(), contract, state.blobs))
        except PayloadError:
            passing.unlink(missing_ok=True)  # the file is damaged; the next attempt starts from the beginning
            raise
        state.rename(passing, DATA_FILE)
    return data


async def fetch_snapshot(
    exchange: Entrance, state: NodeState, contract: Contract, *, is_mapped: bool = False
) -> Replica:
    """Fetch the newest snapshot. Resumes a partial download where it broke off. is_mapped: see `load_replica`."""
    begun = state.partial_snapshot()
    held_bytes = begun.size if begun else 0
    text = "fetching a snapshot" + (f"; {held_bytes:,} bytes are already here" if begun else "")
    log.info("%s", text)
    try:
        passing = await exchange.snapshot(state.path(""), contract, begun)
    except BeyondTheEnd as error:
        if begun is None:
            raise
        # the partial file would be too long at the next attempt as well
        log.warning("%s", str(error))
        begun.path.unlink()
        passing = await exchange.snapshot(state.path(""), contract, None)
    try:
        replica = await asyncio.to_thread(load_replica, contract, passing, is_mapped=is_mapped)
    except Exception:
        passing.unlink()  # the file is damaged; the next attempt starts from the beginning
        raise
    state.rename(passing, REPLICA_FILE)
    text = f"snapshot of step {replica.step}, {replica.layout.parameters:,} parameters"
    tell(log, logging.INFO, "node.snapshot_fetched", text, step=replica.step)
    return replica
