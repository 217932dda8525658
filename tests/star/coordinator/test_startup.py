"""Tests that a coordinator that is stopped while it starts ends at once, and that the next start continues."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.sealed_run import make_run, node_key
from thinwire_common.within import Within
from thinwire_coordinator.coordinator import Coordinator
from thinwire_coordinator.hall.access.store import ORGANIZER, AccessStore
from thinwire_coordinator.hall.events import Cause
from thinwire_coordinator.hall.ledger.state_directory import is_state, open_state
from thinwire_coordinator.hall.rpc.server import check_listen
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_coordinator.hall.workers import Job
from thinwire_coordinator.star.trust.standing import Standing
from thinwire_proto.contract import RunSpec
from thinwire_proto.errors import ConfigError

STEPS = 40
MODEL = {"width": 2, "layers": 1, "heads": 1, "hidden": 2, "context": 8}


def settings(folder: Path) -> CoordinatorSettings:
    run = None if is_state(folder) else RunSpec.model_validate({"model": MODEL})
    return CoordinatorSettings(folder, "127.0.0.1:0", run, wait_for=1, evaluate_every=100)


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


@pytest.mark.parametrize(("wanted", "threads"), [(None, 1), (2, 2)])
async def test_a_small_model_is_computed_on_one_thread_unless_more_are_requested(
    tmp_path: Path, wanted: int | None, threads: int
) -> None:
    """Of a run that this process creates, and so computes with before it knows its size; and of one that it opens."""
    before, found = torch.get_num_threads(), list[int]()
    for _ in range(2):
        torch.set_num_threads(3)
        stop = asyncio.Event()
        coordinator = Coordinator(replace(settings(tmp_path), threads=wanted), on_listening=lambda port: None)
        running = asyncio.ensure_future(coordinator.run(stop))
        while coordinator.readiness.swarm is None and not running.done():
            await asyncio.sleep(0)
        for job in Job:
            found.append(await coordinator._workers.submit(job, torch.get_num_threads))
        stop.set()
        await running
    torch.set_num_threads(before)
    assert set(found) == {threads}


async def test_a_node_that_is_pardoned_while_the_coordinator_starts_is_pardoned(tmp_path: Path) -> None:
    """After it has read what is known against the node, and before it looks for orders."""
    await asyncio.to_thread(make_run, tmp_path, 1)  # it starts an event loop of its own
    node, stop = node_key(1).public, asyncio.Event()
    suspected = Standing(node.node_id)
    suspected.suspect(Cause.NOISE, "its votes do not help")
    with closing(AccessStore(tmp_path)) as access:
        access.standings.put({node.node_id: suspected.plain()})

    def unban(port: int) -> None:
        with closing(AccessStore(tmp_path)) as store:
            store.bans.unban(node.node_id, "a mistake", ORGANIZER, time.time())

    coordinator = Coordinator(settings(tmp_path), on_listening=unban)
    running = asyncio.ensure_future(coordinator.run(stop))
    async with Within(30.0):
        while coordinator._run is None or coordinator._run.stands(node.node_id) != (1.0, ""):
            await asyncio.sleep(0.05)
    stop.set()
    await running


async def test_no_seal_waits_for_a_standby_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "bodies.url").write_text("memory://sealed")
    await asyncio.to_thread(make_run, tmp_path, 1)  # it starts an event loop of its own
    with pytest.raises(ConfigError, match="--seal-after-standby: the updates of this run are in a store"):
        await Coordinator(replace(settings(tmp_path), seal_after_standby=True)).run(asyncio.Event())


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


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_a_coordinator_whose_port_is_in_use_creates_no_run(tmp_path: Path, host: str) -> None:
    with socket.create_server((host, 0)) as taken:
        listen = f"{host}:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"cannot listen on {listen}: the port is in use"):
            await Coordinator(replace(settings(tmp_path), listen=listen)).run(asyncio.Event())
    assert not is_state(tmp_path)
    await check_listen(listen)  # it is free again
