"""Tests that a coordinator that is stopped while it starts ends at once, and that the next start continues."""

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


async def ready_when_stopped(folder: Path, text: str) -> bool:
    """Run a coordinator, and stop it as soon as its state contains `text`. Returns whether nodes could already join."""
    stop, ports = asyncio.Event(), list[int]()
    coordinator = Coordinator(settings(folder), on_listening=ports.append)
    running = asyncio.ensure_future(coordinator.run(stop))
    while text not in coordinator.readiness.text and not running.done():
        await asyncio.sleep(0)
    stop.set()
    await running
    return bool(ports)


async def serves(folder: Path) -> None:
    """Run a coordinator until nodes can join."""
    stop = asyncio.Event()

    def joined(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            stop.set()

    await Coordinator(settings(folder), on_listening=joined).run(stop)
    assert stop.is_set()


async def test_a_coordinator_stopped_while_it_creates_a_run_leaves_no_state(tmp_path: Path) -> None:
    assert not await ready_when_stopped(tmp_path, "creating the corpus")
    assert not is_state(tmp_path)
    await serves(tmp_path)
    assert is_state(tmp_path)


async def test_a_coordinator_stopped_while_it_replays_leaves_the_ledger_unchanged(tmp_path: Path) -> None:
    await asyncio.to_thread(make_run, tmp_path, STEPS)
    assert not await ready_when_stopped(tmp_path, "replaying")
    state = open_state(tmp_path)
    assert state.ledger.begin_term().number == 1  # the stopped coordinator recorded no term
    assert state.ledger.step == STEPS
    state.close()
    await serves(tmp_path)
