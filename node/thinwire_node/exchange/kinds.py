"""Kinds of exchange, by the name that a contract has for them (`exchange.kind`).

An implementation registers itself in its own file: `register("star", connect)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from thinwire_common.traffic import Traffic
from thinwire_node.exchange.port import Exchange
from thinwire_node.runtime import Clocks
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ConfigError

STAR = "star"
"""Everybody is linked to the coordinator. It is how a node learns the contract, before it knows the kind."""
BUILT_IN = {STAR: "thinwire_node.exchange.coordinator.star"}
"""Which module registers a kind; it is imported when it is needed."""


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
    exchange = getattr(contract, "exchange", None)
    return exchange.kind if exchange is not None else STAR


def open_exchange(kind: str, surroundings: Surroundings) -> Exchange:
    """Raises ConfigError if this version has no such kind."""
    if kind not in _kinds and kind in BUILT_IN:
        import_module(BUILT_IN[kind])
    if kind not in _kinds:
        known = ", ".join(sorted({*BUILT_IN, *_kinds}))
        raise ConfigError(f"exchange.kind: this version has {known}, not {kind!r}; install a newer version")
    return _kinds[kind](surroundings)
