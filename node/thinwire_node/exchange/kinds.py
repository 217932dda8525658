"""The registry of exchange kinds, by the name in the contract (`exchange.kind`).

Each kind is a package that registers itself on import: `register("star", open_star)`. There is no list of kinds. To
find an unknown kind, `open_exchange` imports the packages beside this file. If the kind is still unknown, it imports
the modules that installed packages name in the entry-point group `thinwire.kinds`. `thinwire_proto.contract.exchanges`
registers each kind's section of the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from thinwire_common.traffic import Traffic
from thinwire_node.exchange.gossip_port import GossipExchange
from thinwire_node.exchange.port import Exchange
from thinwire_node.runtime import Clocks
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ConfigError
from thinwire_proto.identity.invite import Invite
from thinwire_proto.kind_modules import KindModules

STAR = "star"
"""The exchange in which every node is linked to the coordinator. A node without a contract uses it to fetch one."""


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


AnyExchange = Exchange | GossipExchange
Open = Callable[[Surroundings], AnyExchange]
_kinds: dict[str, Open] = {}
_modules = KindModules(home="thinwire_node.exchange")


def register(kind: str, open_: Open) -> None:
    """Raises ConfigError if the name is taken."""
    _modules.home.load_before(open_)
    if kind in _kinds:
        raise ConfigError(f"exchange.kind: the name {kind!r} is taken; choose another")
    _kinds[kind] = open_


def kind_of(contract: Contract | None) -> str:
    """The exchange kind of a run; STAR if the node has no contract yet."""
    return contract.exchange.kind if contract is not None else STAR


def open_exchange(kind: str, surroundings: Surroundings) -> AnyExchange:
    """Open an exchange. Raises ConfigError if this version has no such kind."""
    _modules.import_for(kind, _kinds)
    if kind not in _kinds:
        known = ", ".join(sorted(_kinds))
        raise ConfigError(f"exchange.kind: this version supports {known}, not {kind!r}; install a newer version")
    return _kinds[kind](surroundings)
