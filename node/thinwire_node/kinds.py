"""The registry of the kinds of exchange, by the name in the contract, `exchange.kind`.

It has one line for each, which is all that names them outside their folders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from thinwire_common.traffic import Traffic
from thinwire_node.exchange.port import Entrance
from thinwire_node.options import NodeOptions
from thinwire_node.part import Part
from thinwire_node.runtime import Clocks
from thinwire_node.session.record import Record
from thinwire_node.storage.state import NodeState
from thinwire_proto.contract import Contract
from thinwire_proto.identity.invite import Invite
from thinwire_proto.kinds import Kinds

if TYPE_CHECKING:
    from thinwire_node.machine import Machine


@dataclass(frozen=True)
class Surroundings:
    """The arguments that open an exchange.

    address: HOST:PORT of the coordinator. traffic: counts the bytes sent and received. invite: names the coordinator
    that answers there; None: any is taken. thin_line: whether to bound what is on its way to this node, as
    `exchange.coordinator.link` explains."""

    address: str
    clocks: Clocks
    traffic: Traffic
    invite: Invite | None = None
    thin_line: bool = False


@dataclass(frozen=True)
class PartSettings:
    """What a part is made from. record: counts its work."""

    contract: Contract
    state: NodeState
    machine: Machine
    record: Record
    options: NodeOptions
    address: str


class Kind(Protocol):
    """A kind of exchange, as a node needs it."""

    @staticmethod
    def open_exchange(surroundings: Surroundings) -> Entrance:
        """Raises ConfigError."""

    @staticmethod
    def make_part(settings: PartSettings) -> Part:
        """A part that takes the exchanges which `open_exchange` gives."""


KINDS: Kinds[type[Kind]] = Kinds(
    "exchange",
    "thinwire_node.star.kind",
    "thinwire_node.gossip.kind",
)


def name_of(contract: Contract | None) -> str:
    """The exchange kind of a run. A node without a contract asks for one as a node of the first kind does: all have the
    same entrance."""
    return contract.exchange.kind if contract is not None else KINDS.names()[0]
