"""Kinds of exchange, by the name that a contract has for them (`exchange.kind`).

Each kind is a package of its own, which registers itself when it is imported: `register("star", open_star)`. No list
names the kinds. A kind that is not known yet is looked for in the packages beside this file, and in the modules that
installed packages name in the entry-point group `thinwire.kinds`. The kind's section of the contract is registered in
`thinwire_proto.contract.exchanges`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points

from thinwire_common.traffic import Traffic
from thinwire_node import exchange
from thinwire_node.exchange.port import Exchange
from thinwire_node.runtime import Clocks
from thinwire_proto.contract import Contract
from thinwire_proto.contract.unions import ENTRY_POINTS
from thinwire_proto.errors import ConfigError

STAR = "star"
"""Everybody is linked to the coordinator. It is how a node learns the contract, before it knows the kind."""


@dataclass(frozen=True)
class Surroundings:
    """What an exchange is opened with. address: as the volunteer gave it. What passes is counted in `traffic`."""

    address: str
    clocks: Clocks
    traffic: Traffic


Open = Callable[[Surroundings], Exchange]
_kinds: dict[str, Open] = {}


def register(kind: str, open_: Open) -> None:
    _kinds[kind] = open_


def kind_of(contract: Contract | None) -> str:
    """Of the run, or of a run that the node knows nothing of yet."""
    return contract.exchange.kind if contract is not None else STAR


def open_exchange(kind: str, surroundings: Surroundings) -> Exchange:
    """Raises ConfigError if this version has no such kind."""
    if kind not in _kinds:
        _import_all()
    if kind not in _kinds:
        known = ", ".join(sorted(_kinds))
        raise ConfigError(f"exchange.kind: this version has {known}, not {kind!r}; install a newer version")
    return _kinds[kind](surroundings)


def _import_all() -> None:
    for module in pkgutil.iter_modules(exchange.__path__):
        if module.ispkg:
            import_module(f"{exchange.__name__}.{module.name}")
    for entry in entry_points(group=ENTRY_POINTS):
        entry.load()
