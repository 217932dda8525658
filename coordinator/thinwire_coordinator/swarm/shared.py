"""The objects that all parts of one swarm share. `assembly` creates them."""

from __future__ import annotations

from dataclasses import dataclass

from thinwire_coordinator.ledger.ledger import Term
from thinwire_coordinator.ledger.state_directory import RunState
from thinwire_coordinator.round.driver import RoundDriver
from thinwire_coordinator.swarm.feed import EncodeUpdate, Feed
from thinwire_coordinator.swarm.registry import Registry
from thinwire_coordinator.swarm.tasks import Tasks
from thinwire_coordinator.swarm.workers import Workers
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
