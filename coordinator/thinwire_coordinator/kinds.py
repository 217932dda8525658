"""The kinds of exchange: one line each, and all that names them outside their folders."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from thinwire_coordinator.hall.kind import Kind
from thinwire_proto.contract import Contract
from thinwire_proto.errors import ConfigError

KINDS = {
    "star": "thinwire_coordinator.star.kind:KIND",
    "gossip": "thinwire_coordinator.gossip.kind:KIND",
}
"""By the name in the contract, `exchange.kind`: the module and the object."""


def kind_of(contract: Contract) -> Kind:
    """The kind of a run's exchange. Raises ConfigError if this version has no such kind."""
    return kind(contract.exchange.kind)


def kind(name: str) -> Kind:
    """The same by its name."""
    if name not in KINDS:
        raise ConfigError(f"exchange.kind: this version runs {', '.join(KINDS)}, not {name!r}; install another version")
    module, _, found = KINDS[name].partition(":")
    return cast(Kind, getattr(import_module(module), found))
