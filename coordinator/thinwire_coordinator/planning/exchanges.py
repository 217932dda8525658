"""The planner of each kind of exchange, and the plan of a run of any kind. The only place that chooses between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Protocol, cast

from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.planning.facts import DataFacts, ModelFacts, SwarmFacts
from thinwire_coordinator.planning.plan import Advice, Plan, Stage, Step, micro_batch_for
from thinwire_coordinator.planning.planned import runs_of
from thinwire_coordinator.planning.run_text import Key, Words
from thinwire_coordinator.planning.settings import Wanted
from thinwire_proto.contract import RunSpec
from thinwire_proto.errors import ConfigError


class ExchangePlanner(Protocol):
    """What an exchange has of its own. RULES: the kinds of rule that `init --rule` can choose.

    `choose` returns a run with its amendments. It and `step_of` raise ConfigError for nodes that the exchange cannot
    join. `advise` also gets the paths of all keys of the file.
    """

    RULES: Sequence[str]

    def choose(self, wanted: Wanted) -> tuple[RunSpec, Sequence[Order]]: ...
    def step_of(self, run: RunSpec, facts: ModelFacts, swarm: SwarmFacts, micro_batch: int) -> Step: ...
    def words_of(self, plan: Plan) -> Words: ...
    def keys_of(self, plan: Plan) -> dict[str, list[Key]]: ...
    def advise(self, plan: Plan, given: Iterable[tuple[str, ...]]) -> list[Advice]: ...


PLANNERS = {
    "star": "thinwire_coordinator.planning.star.planner",
    "gossip": "thinwire_coordinator.planning.gossip.planner",
}
"""The module of each, by the name of the exchange."""


def planner(exchange: str) -> ExchangePlanner:
    """The planner of an exchange. Raises ConfigError if there is none."""
    if exchange not in PLANNERS:
        raise ConfigError(f"there is no exchange {exchange!r}; there are {', '.join(PLANNERS)}")
    return cast(ExchangePlanner, import_module(PLANNERS[exchange]))


def planner_of(run: RunSpec) -> ExchangePlanner:
    return planner(run.exchange.kind)


def plan_of(
    run: RunSpec,
    model: ModelFacts,
    data: DataFacts,
    swarm: SwarmFacts,
    memory_bytes: float = math.inf,
    planned: Sequence[Order] = (),
) -> Plan:
    """The plan of a run and its amendments, with the largest micro-batch that fits into a node's memory. Raises
    ConfigError if its exchange cannot join so many nodes, and PlannedError."""
    runs, step_of = runs_of(run, planned), planner_of(run).step_of
    micro_batch = min(micro_batch_for(amended, model, memory_bytes) for _, amended in runs)
    ends = [*(begins for begins, _ in runs[1:]), runs[-1][1].schedule.steps]
    stages = [
        Stage(begins, end - begins, amended, step_of(amended, model, swarm, micro_batch))
        for (begins, amended), end in zip(runs, ends, strict=True)
    ]
    return Plan(stages, model, data, swarm, memory_bytes, micro_batch)
