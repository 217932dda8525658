"""A node's part in a gossip run: its iterations, which go on without a session, and its journal."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from thinwire_common.reach.hosts import split_address
from thinwire_node.exchange.port import MomentumClaim, Surroundings
from thinwire_node.gossip.exchange import Gossip
from thinwire_node.gossip.gradient import GradientSum
from thinwire_node.gossip.journal import GossipJournal, JournalEntry, read_x
from thinwire_node.gossip.lines.direct_lines import open_direct_lines
from thinwire_node.gossip.lines.lines import PeerLines
from thinwire_node.gossip.port import GossipExchange, Listener, MakeLines
from thinwire_node.gossip.rules import make_own_steps
from thinwire_node.gossip.session import GossipSession
from thinwire_node.gossip.training import GossipTraining
from thinwire_node.gossip.work import GossipWork, TakeContract
from thinwire_node.kinds import KINDS, PartSettings
from thinwire_node.part import Part
from thinwire_node.report import PartView, Peers
from thinwire_node.runtime import Clocks
from thinwire_node.session.blob_fetcher import BlobFetcher
from thinwire_node.session.record import Record
from thinwire_node.settings import NodeOptions
from thinwire_node.training.compute import Compute
from thinwire_node.training.threads import Threads
from thinwire_proto.contract import Contract
from thinwire_proto.contract.exchanges.gossip import GossipSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.gossip.member import Member
from thinwire_proto.gossip.member_state import MemberSettings
from thinwire_proto.gossip.peer_wire import body_bytes_max
from thinwire_proto.task import DataSource


def open_training(
    contract: Contract,
    first: Replica,
    kept: JournalEntry | None,
    data: DataSource,
    compute: Compute,
    journal: GossipJournal,
    threads: Threads,
    make_lines: MakeLines,
    record: Record,
    options: NodeOptions,
    clocks: Clocks,
    take_contract: TakeContract = lambda contract: None,
) -> GossipTraining:
    """first: the parameters that all nodes begin with. kept: the newest entry of the journal. take_contract: see
    `GossipWork`."""
    layout, exchange = layout_of(contract.parameters), contract.exchange
    assert isinstance(exchange, GossipSpec)
    patience_s, steps = exchange.patience_ms / 1000, contract.schedule.steps
    settings = MemberSettings(exchange.codec, exchange.gamma, exchange.slack, patience_s, steps, is_bounded=True)
    if kept is not None:
        member = Member.restore(layout, settings, kept.member)
    else:
        x = torch.cat([first.tensors[tensor.name].reshape(-1).cpu() for tensor in layout.tensors])
        member = Member(layout, settings, x)
    optimizer = make_own_steps(contract, layout)
    if kept is not None:
        try:
            optimizer.load(kept.moments, kept.steps)
        except ValueError as error:
            raise journal.unreadable(error) from None
    pulled = torch.empty_like(member.x) if exchange.gradient_pull else None
    gradient = GradientSum(layout, data, compute, member.x, pulled)
    work = GossipWork(contract, layout, member, optimizer, gradient, journal, threads, kept, pulled, take_contract)
    return GossipTraining(work, first, make_lines, record, options, clocks)


@KINDS.register("gossip")
class GossipPart(Part):
    _settings: PartSettings
    work: GossipWork | None = None
    takes_snapshots = False  # the one that a node begins with is the first state

    def __init__(self, settings: PartSettings) -> None:
        if settings.ranks is not None:
            raise ConfigError("this is a gossip run, in which a node is one process; give one --device")
        super().__init__(settings)
        self._journal = GossipJournal(settings.state, settings.contract.hash)
        self._entry = self._journal.read()  # not taken up yet
        self.training: GossipTraining | None = None
        """None until there are data and parameters."""
        self._session: GossipSession | None = None
        self._lines: PeerLines | None = None

    @staticmethod
    async def open_exchange(surroundings: Surroundings) -> Gossip:
        return await Gossip.open(surroundings)

    @staticmethod
    def undivided(contract: Contract) -> str:
        return "this is a gossip run"

    @staticmethod
    def parameters(folder: Path, contract: Contract) -> Mapping[str, Tensor]:
        return layout_of(contract.parameters).unflattened(read_x(folder))

    @property
    def replica(self) -> Replica | None:  # type: ignore[override]
        """The parameters that all nodes begin with."""
        return self.training.replica if self.training is not None else None

    def claim(self) -> MomentumClaim | None:
        if self.training is not None:
            return MomentumClaim(self.training.work.saved.trained_through)
        return MomentumClaim(self._entry.trained_through) if self._entry is not None else None

    async def take_up(self, data: DataSource, replica: Replica) -> None:
        if self.training is not None:
            if self._lines is not None:
                await self._lines.pace()
            return
        settings, kept = self._settings, self._entry
        contract, machine, options = settings.contract, settings.machine, settings.options
        exchange, layout = contract.exchange, layout_of(contract.parameters)
        assert isinstance(exchange, GossipSpec)
        threads, key = machine.threads(), settings.state.key
        compute = await machine.make_compute(contract, settings.state, threads, settings.record)
        coordinator, _ = split_address(settings.address)
        nodes_max, throttle = contract.round.nodes_max, settings.throttle
        direct = await open_direct_lines(options, coordinator, key, contract.hash, nodes_max, throttle)
        bytes_max, traffic = body_bytes_max(layout, exchange.codec), settings.record.traffic

        def make_lines(listener: Listener) -> PeerLines:
            self._lines = PeerLines(key, contract.hash, bytes_max, listener, direct, traffic)
            return self._lines

        self.training = open_training(
            contract,
            replica,
            kept,
            data,
            compute,
            self._journal,
            threads,
            make_lines,
            settings.record,
            options,
            machine.clocks,
            settings.take_contract,
        )
        self._entry, self.work = None, self.training.work

    def session(
        self, exchange: GossipExchange, head_step: int, data: DataSource, fetcher: BlobFetcher
    ) -> GossipSession:
        assert self.training is not None
        settings = self._settings
        clocks = settings.machine.clocks
        self._session = GossipSession(exchange, self.training, settings.record, clocks, data, fetcher)
        return self._session

    async def failure(self) -> None:
        """The iterations go on while no session runs, and may fail then."""
        if self.training is not None:
            await self.training.errands.failure()
        await asyncio.Event().wait()

    async def stop(self) -> None:
        if self.training is not None:
            await self.training.stop()

    def done_in_words(self) -> str:
        return f"{self._settings.record.counted} iterations"

    def view(self) -> PartView:
        training, session = self.training, self._session
        if training is None:
            return PartView("", peers=self._peers())
        words = session.doing if session is not None and session.is_open else training.doing
        return PartView(words, goes_on=training.is_under_way, step=training.work.finished, peers=self._peers())

    def _peers(self) -> Peers:
        """Also before the first session and after the last one."""
        record, training = self._settings.record, self.training
        traffic, waited_s = record.traffic, record.phases["peers"].sum_s
        by_line = dict(traffic.peers_sent), dict(traffic.peers_received)
        if training is None:
            return Peers(0, 0, 0, waited_s, 0, *by_line)
        view, neighbours = training.work.view, training.neighbours
        lines, edges = neighbours.lines, neighbours.edges()
        present = len(lines.present)
        absent, direct = len(view.peers) - present, len(lines.direct)
        return Peers(view.topology, present, absent, waited_s, direct, *by_line, edges)
