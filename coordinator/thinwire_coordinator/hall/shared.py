"""The objects that all parts of one swarm share. `assembly` creates them."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_coordinator.hall.ledger.ledger import Term
from thinwire_coordinator.hall.ledger.state_directory import RunState
from thinwire_coordinator.hall.registry import Registry
from thinwire_coordinator.hall.tasks import Tasks
from thinwire_coordinator.hall.workers import Workers
from thinwire_coordinator.star.feed import EncodeUpdate, Feed
from thinwire_coordinator.star.round.driver import RoundDriver
from thinwire_proto.contract import Contract
from thinwire_proto.exact.tiles import TileLayout


@dataclass(frozen=True)
class Shared:
    state: RunState
    layout: TileLayout
    term: Term
    registry: Registry
    driver: RoundDriver
    feed: Feed
    encode: EncodeUpdate
    workers: Workers
    tasks: Tasks

    @property
    def contract(self) -> Contract:
        return self.state.contract
