"""What a broken or late upload of parameters does to the final mean: nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch

from support.gossip_coordinator import GossipCoordinator, ReportingNode, gossip_coordinator
from support.small import small_contract
from thinwire_common.within import Within
from thinwire_coordinator.gossip import settings
from thinwire_coordinator.gossip.directory import Phase
from thinwire_coordinator.gossip.ledger_rows import decode_deposits
from thinwire_coordinator.hall.workers import Job
from thinwire_proto.errors import PayloadError
from thinwire_proto.exact.replica import load_replica
from thinwire_proto.gossip.final_mean import final_mean, in_integers

STEPS, NODES = 2, 3
PATIENCE_S = 0.4
CONTRACT = small_contract(
    exchange={"kind": "gossip", "topology": "complete", "codec": "dense", "patience_ms": round(PATIENCE_S * 1000)},
    rule={"kind": "adamw", "samples": 2},
    schedule={"steps": STEPS, "warmup_steps": 1, "learning_rate": 1e-3},
    round={"pace": "clock", "length_ms": 50, "min_contributions": NODES},
)


def collecting(folder: Path, scene: Callable[[GossipCoordinator], Coroutine[Any, Any, None]]) -> None:
    """Play a scene from where all nodes have done their iterations."""

    async def play() -> None:
        with gossip_coordinator(folder, CONTRACT) as coordinator:
            nodes = coordinator.join(NODES)
            await coordinator.beat()
            await coordinator.beat()
            for node in nodes:
                node.iteration, node.head = STEPS, bytes(32)
            await coordinator.beat()
            assert coordinator.run.beats.directory.phase is Phase.COLLECTING
            await scene(coordinator)

    asyncio.run(play())


async def sealed(coordinator: GossipCoordinator) -> torch.Tensor:
    """The sealed mean, flat."""
    await coordinator.run.deposits.seal_if_due()
    return sealed_model(coordinator)


def sealed_model(coordinator: GossipCoordinator) -> torch.Tensor:
    assert coordinator.run.beats.directory.phase is Phase.COMPLETE
    state = coordinator.run.state
    model = load_replica(state.contract, state.snapshot_path(state.snapshot_steps()[-1]))
    return torch.cat([tensor.flatten() for tensor in model.tensors.values()])


def mean_of(nodes: list[ReportingNode], parameters: int) -> torch.Tensor:
    return final_mean(
        in_integers(torch.from_numpy(np.frombuffer(node.body(parameters), "<f4").copy())) for node in nodes
    )


async def broken_upload(after_s: float) -> AsyncIterator[bytes]:
    """The parts of a body whose line breaks after its beginning."""
    yield bytes(4)
    await asyncio.sleep(after_s)
    raise ConnectionError


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end waits at least as long as a silent node is not lost, which is longer than these tests."""
    monkeypatch.setattr(settings, "LOST_AFTER_S", 0.1)


def test_a_call_that_ends_while_its_parameters_are_added_counts_them_once(tmp_path: Path) -> None:
    async def scene(coordinator: GossipCoordinator) -> None:
        first, *others = coordinator.nodes
        go_on = threading.Event()
        coordinator.run.workers.submit(Job.ADD_DEPOSIT, go_on.wait)
        call = asyncio.ensure_future(coordinator.deposit(first))
        await asyncio.sleep(0.1)  # until the body waits for the worker
        call.cancel()
        await asyncio.sleep(0.1)
        others_turn = asyncio.ensure_future(coordinator.deposit(others[0]))
        await asyncio.sleep(0.1)
        assert not others_turn.done()  # nobody else may add meanwhile
        go_on.set()
        assert await others_turn == ""
        assert call.cancelled()
        assert await coordinator.deposit(first) == ""  # it does not know
        assert await coordinator.deposit(others[1]) == ""
        parameters = coordinator.run.view.layout.parameters
        assert torch.equal(await sealed(coordinator), mean_of(coordinator.nodes, parameters))

    collecting(tmp_path, scene)


@pytest.mark.usefixtures("short_patience")
def test_a_node_whose_uploads_break_again_and_again_does_not_hold_up_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks_again_and_again(coordinator: GossipCoordinator) -> None:
        while coordinator.run.beats.directory.phase is Phase.COLLECTING:
            with suppress(ConnectionError):
                await coordinator.deposit(coordinator.nodes[-1], broken_upload(PATIENCE_S / 4))
            await asyncio.sleep(0)

    async def scene(coordinator: GossipCoordinator) -> None:
        caplog.set_level("INFO", "thinwire.coordinator")
        others = coordinator.nodes[:-1]
        for node in others:
            assert await coordinator.deposit(node) == ""
        uploads = asyncio.ensure_future(breaks_again_and_again(coordinator))
        async with Within(20 * PATIENCE_S):
            while coordinator.run.beats.directory.phase is Phase.COLLECTING:
                await coordinator.run.deposits.seal_if_due()
                await asyncio.sleep(PATIENCE_S / 8)
        await uploads
        parameters = coordinator.run.view.layout.parameters
        assert torch.equal(sealed_model(coordinator), mean_of(others, parameters))
        assert "the mean of 2 nodes is sealed, without node 2 (2 of 2 iterations)" in caplog.text

    collecting(tmp_path, scene)


def test_parameters_that_are_in_the_mean_are_not_taken_again(tmp_path: Path) -> None:
    """The same are answered as before, because the answer may be lost; others are refused."""

    async def scene(coordinator: GossipCoordinator) -> None:
        first = coordinator.nodes[0]
        assert await coordinator.deposit(first) == ""
        assert await coordinator.deposit(first) == ""
        body = bytes(4 * coordinator.run.view.layout.parameters)
        claim = first.claim(CONTRACT, body)

        async def parts() -> AsyncIterator[bytes]:
            yield body

        assert "in the mean already" in await coordinator.run.deposits.take(first.member, claim, len(body), parts())

    collecting(tmp_path, scene)


def test_parameters_that_are_far_from_all_others_are_left_out_and_the_log_says_whose(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scene(coordinator: GossipCoordinator) -> None:
        *honest, hostile = coordinator.nodes
        parameters = coordinator.run.view.layout.parameters
        for node in honest:
            assert await coordinator.deposit(node) == ""
        body = np.full(parameters, 300.0, "<f4").tobytes()

        async def parts() -> AsyncIterator[bytes]:
            yield body

        claim = hostile.claim(CONTRACT, body)
        assert await coordinator.run.deposits.take(hostile.member, claim, len(body), parts()) == ""
        assert torch.equal(await sealed(coordinator), mean_of(honest, parameters))
        state = coordinator.run.state
        counted = {entry.node for entry in state.ledger.row(state.ledger.step - 1).counted}
        assert counted == {node.node_id for node in honest}
        assert not (state.folder / "deposits").exists()
        name = coordinator.run.view.members[hostile.node_id].name
        assert f"the mean of 2 nodes is sealed, without {name} (its parameters were" in caplog.text
        assert "times as far from the median as usual" in caplog.text

    caplog.set_level("INFO", "thinwire.coordinator")
    collecting(tmp_path, scene)


@pytest.mark.parametrize("at", range(5))
def test_a_deposit_with_a_field_of_another_kind_is_refused(at: int) -> None:
    fields: list[Any] = ["node", 3, bytes(32), bytes(32), bytes(64)]
    assert decode_deposits(msgpack.packb([1, [fields]]))
    fields[at] = [fields[at]]
    with pytest.raises(PayloadError):
        decode_deposits(msgpack.packb([1, [fields]]))
