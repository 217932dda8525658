"""Tests what becomes of a round that is being sealed when the coordinator is told to stop."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from support.swarm_bench import Busy, SwarmNodes
from thinwire_coordinator.coordinator import Coordinator
from thinwire_coordinator.hall.observe.sinks.sinks import SinkSettings
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_coordinator.hall.workers import Job
from thinwire_coordinator.star.round.announcements import Receipt
from thinwire_coordinator.star.star import Star
from thinwire_proto.contract import RunSpec
from thinwire_proto.wire.reasons import Reason

MODEL = {"width": 2, "layers": 1, "heads": 1, "hidden": 2, "context": 8}
PATIENCE_S = 60.0


async def contributing(nodes: SwarmNodes) -> asyncio.Task[Receipt]:
    """Have the only node contribute. Returns once its round is being sealed."""
    member = nodes.join("a")
    await nodes.attend(member)
    found = asyncio.ensure_future(nodes.contribute(member, 0))
    while not nodes.swarm.driver.machine.sealing:
        await asyncio.sleep(0)
    return found


async def test_the_last_step_is_in_the_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk takes the row only after the swarm was stopped."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: PLC0415 - slow

    curves, stop, listening = tmp_path / "curves", asyncio.Event(), asyncio.Event()
    settings = CoordinatorSettings(
        tmp_path / "state",
        "127.0.0.1:0",
        RunSpec.model_validate({"model": MODEL}),
        wait_for=1,
        evaluate_every=100,
        sinks=SinkSettings(tensorboard=curves),
    )
    coordinator = Coordinator(settings, on_listening=lambda port: listening.set())
    running = asyncio.ensure_future(coordinator.run(stop))
    await asyncio.wait_for(listening.wait(), PATIENCE_S)
    swarm = coordinator._run
    assert isinstance(swarm, Star)
    nodes, stop_swarm, stopped = SwarmNodes(swarm), swarm.stop, asyncio.Event()

    def stop_and_tell() -> None:
        stop_swarm()
        stopped.set()

    monkeypatch.setattr(swarm, "stop", stop_and_tell)
    with Busy(nodes.workers, Job.WRITE_UPDATE):
        contribution = await contributing(nodes)
        stop.set()
        await asyncio.wait_for(stopped.wait(), PATIENCE_S)
    await asyncio.wait_for(running, PATIENCE_S)
    assert (await contribution).reason is Reason.COUNTED
    await nodes.end_streams()
    accumulated = EventAccumulator(str(curves))
    accumulated.Reload()
    assert [event.step for event in accumulated.Scalars("loss/training")] == [1]
