"""A coordinator that is told to stop while it starts ends at once, and the next start goes on from what it left."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from support.sealed_run import make_run
from thinwire_coordinator.coordinator import Coordinator, Settings
from thinwire_coordinator.ledger.state_directory import is_state, open_state
from thinwire_proto.contract import RunSpec

STEPS = 40
MODEL = {"width": 2, "layers": 1, "heads": 1, "hidden": 2, "context": 8}


def settings(folder: Path) -> Settings:
    run = None if is_state(folder) else RunSpec.model_validate({"model": MODEL})
    return Settings(folder, "127.0.0.1:0", run, wait_for=1, evaluate_every=100)


async def told_to_stop_while(folder: Path, text: str) -> bool:
    """Run a coordinator, and tell it to stop as soon as it says that it does this. Whether nodes could join before."""
    stop, ports = asyncio.Event(), list[int]()
    coordinator = Coordinator(settings(folder), on_listening=ports.append)
    running = asyncio.ensure_future(coordinator.run(stop))
    while text not in coordinator.readiness.text and not running.done():
        await asyncio.sleep(0)
    stop.set()
    await running
    return bool(ports)


async def serves(folder: Path) -> None:
    """A start that nobody ends before nodes can join."""
    stop = asyncio.Event()

    def joined(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            stop.set()

    await Coordinator(settings(folder), on_listening=joined).run(stop)
    assert stop.is_set()


async def test_while_it_creates_a_run(tmp_path: Path) -> None:
    assert not await told_to_stop_while(tmp_path, "creating the corpus")
    assert not is_state(tmp_path)
    await serves(tmp_path)
    assert is_state(tmp_path)


async def test_while_it_replays(tmp_path: Path) -> None:
    await asyncio.to_thread(make_run, tmp_path, STEPS)
    assert not await told_to_stop_while(tmp_path, "replaying")
    state = open_state(tmp_path)
    assert state.ledger.begin_term().number == 1  # no life of a coordinator was recorded
    assert state.ledger.step == STEPS
    state.close()
    await serves(tmp_path)
