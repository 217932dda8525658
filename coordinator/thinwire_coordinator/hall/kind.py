"""The port of a kind of exchange: what the coordinator and its commands ask of it. `kinds` has the registry."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from thinwire_common.metrics import Definition
from thinwire_coordinator.hall.access.door import Door
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.capacity import Forecast, OwnMemory, Sealed
from thinwire_coordinator.hall.hall import Hall
from thinwire_coordinator.hall.ledger.checks import SignatureCheck
from thinwire_coordinator.hall.ledger.retention import Retention
from thinwire_coordinator.hall.ledger.state_directory import GoOn, RunState, always
from thinwire_coordinator.hall.measuring import HeldOut
from thinwire_coordinator.hall.rpc.service import Service
from thinwire_coordinator.hall.run import Run
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_proto.contract import Contract
from thinwire_proto.exact.replica import Replica
from thinwire_proto.wire.rows import Row


@dataclass(frozen=True)
class Opening:
    """What a run is made from, beside the hall."""

    hall: Hall
    settings: CoordinatorSettings
    access: AccessStore
    retention: Retention
    held_out: HeldOut


class Kind(ABC):
    """A kind of exchange.

    unit: what a step of the run is called, in a word. For the model card: counted: what the ledger counts of a node, in
    words. origin: how the model came about, in lines. about_losses: what the held-out losses were measured on, in a
    sentence; empty for the model itself."""

    unit: str
    counted: str
    origin: Sequence[str]
    about_losses = ""
    has_standby = True
    metrics: Sequence[Definition] = ()
    """The metrics that only its runs have."""

    @abstractmethod
    def open(self, opening: Opening) -> Run:
        """The run, which `Run.start` starts."""

    @abstractmethod
    def service(self, run: Any, door: Door, **others: Any) -> Service:
        """The calls of a run that `open` has made. others: as `Service` takes them."""

    @abstractmethod
    def at_head(self, state: RunState, go_on: GoOn = always) -> Replica:
        """The coordinator's replica at the head of the ledger. go_on: called after each row. Raises LedgerError."""

    @abstractmethod
    def model_at(self, state: RunState, step: int | None) -> Replica:
        """The model at a step, in the unit of `schedule.steps`; None: the newest. Raises ConfigError if there is none,
        or LedgerError."""

    @abstractmethod
    def trained(self, contract: Contract, replica: Replica) -> int:
        """How far a replica is trained, in the unit of `schedule.steps`."""

    def first_amended(self, state: RunState) -> int:
        """The first step that an amendment can hold from, in the unit of `schedule.steps`. Raises ContractError if it
        is too late for one."""
        return state.ledger.step

    def soon(self, step: int) -> str:
        """When an amendment that can hold from this step on does, in words, if nothing was said about it."""
        return f"the next round (step {step}, or soon after)"

    @abstractmethod
    def rows_with_samples(self, replica: Replica) -> int:
        """The number of rows up to a replica that name contributions with samples."""

    @abstractmethod
    def forecast(self, contract: Contract, sealed: Sealed) -> Forecast:
        """The peak disk usage."""

    @abstractmethod
    def memory(self, contract: Contract, frozen: int, *, audits: bool) -> OwnMemory:
        """The most memory that its runs take. frozen: bytes of what is not trained. audits: whether the organizer
        wants contributions audited."""

    @abstractmethod
    def verify(self, state: RunState, say: Callable[[str], None], signatures: SignatureCheck) -> None:
        """Check all rows. say: receives each line of the report. Raises LedgerError at the first failure."""

    @abstractmethod
    def in_card(self, contract: Contract, steps: int, contributions: int) -> Sequence[tuple[str, str]]:
        """Rows of the model card: how the nodes trained together, and how often."""

    def bodies_named_by(self, row: Row) -> Iterable[str]:
        """The names of bodies that a row names beside its own."""
        return ()
