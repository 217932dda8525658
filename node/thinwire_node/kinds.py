"""The registry of the kinds of exchange, by the name in the contract, `exchange.kind`.

It has one line for each, which is all that names them outside their folders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from thinwire_node.limits.throttle import Throttle
from thinwire_node.part import Part
from thinwire_node.runtime import Clocks
from thinwire_node.session.record import Record
from thinwire_node.settings import NodeOptions
from thinwire_node.storage.state import NodeState
from thinwire_node.training.compute import Compute
from thinwire_node.training.threads import Threads
from thinwire_proto.contract import Contract
from thinwire_proto.exact.replica import Replica
from thinwire_proto.kinds import Kinds

if TYPE_CHECKING:
    from thinwire_node.training.ranks import Ranks


class Machine(Protocol):
    """The clocks, state, link and compute of one machine."""

    clocks: Clocks
    device: str
    apply_device: torch.device

    def open_state(self) -> NodeState:
        """Open the state directory. Raises ConfigError."""

    def kind(self, name: str) -> type[Part]:
        """The kind of exchange with this name. Raises ContractError."""

    def threads(self) -> Threads:
        """The threads of a part."""

    async def choose_apply_device(self, contract: Contract, threads: Threads) -> None:
        """Choose the device that applies updates, and log it. Raises ConfigError if this machine cannot compute
        exactly."""

    async def make_compute(self, contract: Contract, state: NodeState, threads: Threads, record: Record) -> Compute:
        """Load the model onto the device. record: the samples at once, and the bits of the base."""

    def place(self, replica: Replica) -> Replica:
        """Move a replica to the device that applies updates. One that is there already is not copied."""


@dataclass(frozen=True)
class PartSettings:
    """What a part is made from. record: counts its work. take_contract: takes an amended contract, or raises a
    ThinwireError if this machine cannot go on under it. throttle: paces its connections, if the owner limits the
    traffic. ranks: see `NodeSettings`."""

    contract: Contract
    state: NodeState
    machine: Machine
    record: Record
    options: NodeOptions
    address: str
    take_contract: Callable[[Contract], None] = lambda contract: None
    throttle: Throttle | None = None
    ranks: Ranks | None = None


KINDS: Kinds[type[Part]] = Kinds(
    "exchange.kind",
    "thinwire_node.star.part",
    "thinwire_node.gossip.part",
)
FOLLOWERS: Kinds[Callable[[Ranks, torch.device], None]] = Kinds(
    "exchange.kind",
    "thinwire_node.star.site.follower",
)
"""The work of a follower on its device, by the kind of exchange, until the leader ends the node."""


def name_of(contract: Contract | None) -> str:
    """The exchange kind of a run. A node without a contract asks for one as a node of the first kind does: all have the
    same entrance."""
    return contract.exchange.kind if contract is not None else KINDS.names()[0]
