"""Tests measurements by simulated nodes, in virtual time: nodes that measure, and nodes that know nothing of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from simulator import virtual_time
from simulator.machine import Hardware
from simulator.world import World
from thinwire_coordinator.hall.measurement import MeasureHere, Part, SetMeasured
from thinwire_coordinator.star.trust.weights import FULL_AFTER

LENGTH_S, EVERY = 10.0, 4
ROUND = {"samples": 16, "weight_max": 8, "length_ms": round(LENGTH_S * 1000)}
SCHEDULE = {"steps": 1000, "warmup_steps": 1, "learning_rate": 1e-3}
SYNTHETIC_LOSS, OWN_LOSS = 5.0, 7.0
TRUSTED = FULL_AFTER + 4
"""A step at which all nodes have their full trust, some rounds after a round's votes are compared."""


class Shared:
    """A world whose nodes share out the held-out losses. Takes the results in the coordinator's place."""

    def __init__(self, pace: str = "clock", every: int = EVERY, **hardware: Any) -> None:
        self.world = World(1, {"round": {**ROUND, "pace": pace}, "schedule": SCHEDULE}, wait_for=3)
        self.world.start_coordinator()
        for name in "abc":
            self.world.start(self.world.add(name, Hardware(**hardware)))
        self.swarm = self.world.living_coordinator().swarm
        self.every = every
        self.measured: list[SetMeasured] = []
        self.measured_at: dict[int, float] = {}
        self.here: list[Part] = []
        self.own_loss = OWN_LOSS
        self.collecting = asyncio.ensure_future(self._collect())

    async def begin(self) -> None:
        """Begin to measure, once nodes have earned trust."""
        await self.world.until(lambda: self.swarm.view.step >= TRUSTED, "trust")
        self.swarm.evaluations.begin(self.every, 64, None)
        self.began = self.world.now

    async def _collect(self) -> None:
        evaluations = self.swarm.evaluations
        while True:
            result = await evaluations.results.get()
            assert (await result.copy).step == result.measurement.step
            if isinstance(result.action, MeasureHere):
                self.here.append(result.action.part)
                evaluations.measured_here(result.measurement, result.action.part, self.own_loss)
            else:
                self.measured.append(result.action)
                self.measured_at[result.action.step] = self.world.now

    @property
    def steps(self) -> list[int]:
        """The steps that were measured, counted from the first of them."""
        return [found.step - self.measured[0].step for found in self.measured]

    def counts(self) -> dict[str, int]:
        return dict(self.swarm.view.counts.evaluation_parts)


def played(test: Callable[[Shared], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def to_its_end() -> None:
        shared = Shared(**options)
        try:
            await test(shared)
            await shared.world.check()
            assert shared.swarm.view.counts.rounds_void.total() == 0
            assert shared.swarm.view.counts.not_counted.total() == 0
        finally:
            shared.collecting.cancel()
            shared.world.close()

    virtual_time.run(to_its_end())


def test_nodes_without_counted_rounds_are_not_asked() -> None:
    """The coordinator measures by itself until two nodes have earned trust, and from then on they do."""

    async def test(shared: Shared) -> None:
        shared.swarm.evaluations.begin(shared.every, 64, None)
        await shared.world.until(lambda: shared.swarm.view.step > 2 * TRUSTED, "trust")
        by = {found.step: (found.loss, found.measured_by) for found in shared.measured}
        assert {by[step] for step in by if step < FULL_AFTER} == {(OWN_LOSS, "coordinator")}
        assert {by[step] for step in by if step > TRUSTED} == {(SYNTHETIC_LOSS, "nodes")}

    played(test)


@pytest.mark.parametrize(("pace", "samples_s"), [("clock", 8.0), ("barrier", 100.0)])
def test_nodes_measure_without_being_late(pace: str, samples_s: float) -> None:
    async def test(shared: Shared) -> None:
        await shared.begin()
        await shared.world.until(lambda: len(shared.measured) >= 3, "three measurements")
        assert shared.steps == [0, EVERY, 2 * EVERY]
        assert {(found.loss, found.measured_by) for found in shared.measured} == {(SYNTHETIC_LOSS, "nodes")}
        assert shared.here == []
        assert shared.counts()["agreed"] >= 3 * 2 * 8
        assert set(shared.counts()) == {"agreed"}

    played(test, pace=pace, samples_s=samples_s)


def test_a_node_that_lies_moves_no_loss_and_is_asked_no_more() -> None:
    async def test(shared: Shared) -> None:
        await shared.begin()
        shared.own_loss = SYNTHETIC_LOSS
        liar = shared.world.volunteers["c"]
        shared.world.trainer(liar).held_out_loss = lambda *_: SYNTHETIC_LOSS / 2  # type: ignore[method-assign]
        trust, ids = shared.swarm.observer.trust, [one.state.node_id for one in shared.world.volunteers.values()]
        await shared.world.until(lambda: not trust.is_established(liar.state.node_id, 0.0), "it loses its trust")
        found = len(shared.measured)
        await shared.world.until(lambda: len(shared.measured) >= found + 3, "three more measurements")
        assert [trust.is_established(one, 0.0) for one in ids] == [True, True, False]
        assert {one.loss for one in shared.measured} == {SYNTHETIC_LOSS}
        assert shared.measured[-1].measured_by == "nodes"

    played(test)
