"""Makes the iterations of a node from what is on disk."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire_node.gossip.gradient import GradientSum
from thinwire_node.gossip.journal import GossipJournal, JournalEntry
from thinwire_node.gossip.lines_port import MakeLines
from thinwire_node.gossip.rules import make_own_steps
from thinwire_node.gossip.training import GossipTraining
from thinwire_node.gossip.work import GossipWork, TakeContract
from thinwire_node.runtime import Clocks
from thinwire_node.session.record import Record
from thinwire_node.settings import NodeOptions
from thinwire_node.training.compute import Compute
from thinwire_node.training.threads import Threads
from thinwire_proto.contract import Contract
from thinwire_proto.contract.exchanges.gossip import GossipSpec
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import TileLayout, layout_of
from thinwire_proto.gossip.member import Member
from thinwire_proto.gossip.member_state import MemberSettings
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
        member = Member(layout, settings, _flat(layout, first))
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


def _flat(layout: TileLayout, replica: Replica) -> Tensor:
    return torch.cat([replica.tensors[tensor.name].reshape(-1).cpu() for tensor in layout.tensors])
