"""An amendment of a gossip run holds from an iteration on that no node has a lease for, and is on disk before that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgpack
import pytest

from support.directories import SETTINGS
from support.gossip_coordinator import GossipCoordinator, ReportingNode, gossip_coordinator
from support.small import small_contract
from thinwire_coordinator.gossip.beats import ReportRefused
from thinwire_coordinator.gossip.directory import Directory, Phase
from thinwire_coordinator.gossip.settings import LEASE_FIRST
from thinwire_coordinator.gossip.store import MEMBERS
from thinwire_coordinator.gossip.verify import verify_beats
from thinwire_coordinator.hall.access.door import DoorReason
from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.hall.ledger.checks import SignatureCheck
from thinwire_coordinator.hall.ledger.state_directory import BEGUN_AMENDMENTS
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.errors import Damaged
from thinwire_proto.exact.amendments import amended
from thinwire_proto.identity.keys import SecretKey

NODES, SAMPLES, STEPS = 3, 2, 1000
CONTRACT = small_contract(
    exchange={"kind": "gossip", "topology": "complete", "codec": "dense"},
    rule={"kind": "adamw", "samples": SAMPLES},
    schedule={"steps": STEPS, "warmup_steps": 1, "learning_rate": 1e-3},
    round={"pace": "clock", "length_ms": 60_000, "min_contributions": NODES},
)
RATE = Order("rate", {"schedule.learning_rate": 5e-4})
Scene = Callable[[GossipCoordinator], Coroutine[Any, Any, None]]


def played(folder: Path, *scenes: Scene) -> None:
    """Play scenes, each with a coordinator of its own, as if the one before had been killed."""

    async def play() -> None:
        keys: list[SecretKey] = []
        for number, scene in enumerate(scenes):
            with gossip_coordinator(folder, CONTRACT) as coordinator:
                if number == 0:
                    keys = [node.key for node in coordinator.join(NODES)]
                    await coordinator.beat()
                    await coordinator.beat()
                else:
                    for key in keys:
                        joined = coordinator.run.members.join(key.public, "again")
                        assert joined is not None
                        coordinator.nodes.append(ReportingNode(key, joined[0], topology=1))
                await scene(coordinator)

    asyncio.run(play())


def amend(coordinator: GossipCoordinator, *orders: Order) -> dict[str, str]:
    return dict(coordinator.run.amend(orders))


def steps_of(coordinator: GossipCoordinator) -> list[int]:
    return [amendment.step for amendment in coordinator.run.hall.contract.amendments]


def on_disk(coordinator: GossipCoordinator) -> list[bytes]:
    return coordinator.run.state.ledger.directory_parts(BEGUN_AMENDMENTS)


def train(coordinator: GossipCoordinator, node: ReportingNode, iterations: int) -> None:
    """Let a node do iterations, with the samples of its lease."""
    lease = coordinator.run.hall.leases.granted(node.node_id)
    positions = [position for run in lease for position in range(run.start, run.start + run.count)]
    node.trained_through = positions[iterations * SAMPLES - 1]
    node.iteration, node.samples, node.compute_ms = node.iteration + iterations, iterations * SAMPLES, 3000 * iterations


def test_no_node_has_a_lease_for_the_first_iteration_of_an_amendment(tmp_path: Path) -> None:
    async def scene(coordinator: GossipCoordinator) -> None:
        train(coordinator, coordinator.nodes[0], 10)
        await coordinator.beat(coordinator.nodes[0])
        leases = coordinator.run.hall.leases
        reach = [
            node.iteration + sum(run.count for run in leases.granted(node.node_id)) // SAMPLES
            for node in coordinator.nodes
        ]
        assert amend(coordinator, RATE) == {}
        assert steps_of(coordinator) == [max(reach)]
        assert max(reach) > LEASE_FIRST == min(reach)
        assert amend(coordinator, RATE) == {}  # it is known by now
        assert amend(coordinator, Order("steps", {"schedule.steps": 500})) == {}
        assert steps_of(coordinator) == [max(reach)] * 2

    played(tmp_path, scene)


def test_the_lease_of_a_node_grows_once_it_has_the_amendment(tmp_path: Path) -> None:
    async def scene(coordinator: GossipCoordinator) -> None:
        node = coordinator.nodes[0]
        amend(coordinator, RATE)
        train(coordinator, node, LEASE_FIRST - 1)
        (told,) = await coordinator.beat(node)
        assert list(told.amendments) == list(coordinator.run.hall.contract.amendments)
        assert sum(run.count for run in told.lease) == SAMPLES
        (knows,) = await coordinator.beat(node)
        assert not knows.amendments
        assert sum(run.count for run in knows.lease) > SAMPLES

    played(tmp_path, scene)


def test_a_node_of_an_older_version_is_told_which_one_it_needs(tmp_path: Path) -> None:
    async def scene(coordinator: GossipCoordinator) -> None:
        node = coordinator.nodes[0]
        node.is_old = True
        amend(coordinator, RATE)
        train(coordinator, node, LEASE_FIRST)
        (told,) = await coordinator.beat(node)
        assert told.lease == ()  # it cannot come to the iteration
        with pytest.raises(ReportRefused, match=r"it needs thinwire \d") as refused:
            await coordinator.beat(node)
        assert refused.value.denied.reason is DoorReason.TOO_OLD

    played(tmp_path, scene)


def test_an_order_waits_for_its_iteration(tmp_path: Path) -> None:
    async def scene(coordinator: GossipCoordinator) -> None:
        later = Order("later", {"schedule.floor": 0.5}, at=LEASE_FIRST + 1)
        amend(coordinator, later)
        assert steps_of(coordinator) == []
        train(coordinator, coordinator.nodes[0], 10)
        await coordinator.beat(coordinator.nodes[0])
        amend(coordinator, later)
        assert steps_of(coordinator)[0] > LEASE_FIRST

    played(tmp_path, scene)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"demo.k": 4}, "demo.k cannot change within a run whose exchange is 'gossip'"),
        ({"round.length_ms": 1000}, "round.length_ms cannot change within a run whose exchange is 'gossip'"),
        ({"rule.samples": 4}, "rule.samples cannot change within a run"),
        ({"rewind": 0}, "cannot go back, .* `thinwire-coordinator branch` begins another one"),
        ({"schedule.steps": LEASE_FIRST}, f"schedule.steps must be above {LEASE_FIRST}, where the run is"),
    ],
)
def test_what_it_cannot_have_is_refused(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    async def scene(coordinator: GossipCoordinator) -> None:
        with pytest.raises(ValueError, match=why):
            raise ValueError(amend(coordinator, Order("one", changes))["one"])
        assert coordinator.run.hall.contract == CONTRACT

    played(tmp_path, scene)


def test_a_shorter_run_ends_there_and_then_takes_no_amendment(tmp_path: Path) -> None:
    async def scene(coordinator: GossipCoordinator) -> None:
        end = LEASE_FIRST + 10
        assert amend(coordinator, Order("end", {"schedule.steps": end})) == {}
        for node in coordinator.nodes:
            train(coordinator, node, LEASE_FIRST)
        await coordinator.beat()
        for node in coordinator.nodes:
            node.samples = 0
        answers = await coordinator.beat()
        assert [sum(run.count for run in answer.lease) for answer in answers] == [10 * SAMPLES] * NODES
        assert "leases up to the last of the 74 iterations" in amend(coordinator, RATE)["rate"]
        for node in coordinator.nodes:
            train(coordinator, node, 10)
        await coordinator.beat()
        assert coordinator.run.beats.directory.phase is Phase.COLLECTING
        assert "`thinwire-coordinator branch` begins another one" in amend(coordinator, RATE)["rate"]

    played(tmp_path, scene)


def test_a_longer_run_goes_on_beyond_its_first_end(tmp_path: Path) -> None:
    async def scene(coordinator: GossipCoordinator) -> None:
        assert amend(coordinator, Order("end", {"schedule.steps": STEPS + 50})) == {}
        await coordinator.beat()
        for node in coordinator.nodes:
            node.iteration = STEPS
        answers = await coordinator.beat()
        assert [answer.stage for answer in answers] == ["training"] * NODES
        for node in coordinator.nodes:
            node.iteration = STEPS + 50
        answers = await coordinator.beat()
        assert [answer.stage for answer in answers][-1] == "deposit"

    played(tmp_path, scene)


def test_what_was_told_is_there_after_a_kill_and_what_was_not_may_begin_later(tmp_path: Path) -> None:
    written: list[bytes] = []

    async def nobody_hears(coordinator: GossipCoordinator) -> None:
        amend(coordinator, RATE)

    async def one_hears(coordinator: GossipCoordinator) -> None:
        assert steps_of(coordinator) == []
        amend(coordinator, RATE)
        node = coordinator.nodes[0]
        (told,) = await coordinator.beat(node)
        written.extend(one.written for one in told.amendments)
        assert on_disk(coordinator) == written

    async def it_is_sealed(coordinator: GossipCoordinator) -> None:
        assert [one.written for one in coordinator.run.hall.contract.amendments] == written
        assert amend(coordinator, RATE) == {}
        node = coordinator.nodes[1]
        train(coordinator, node, 5)
        await coordinator.beat(node)
        await coordinator.run.beats.seal()
        assert on_disk(coordinator) == []

    async def it_goes_on(coordinator: GossipCoordinator) -> None:
        ledger = coordinator.run.state.ledger
        assert ledger.amendments() == written
        assert [one.written for one in coordinator.run.hall.contract.amendments] == written
        said: list[str] = []
        verify_beats(coordinator.run.state, said.append, SignatureCheck(coordinator.run.state.ledger.signatures))
        assert f"amended from iteration {LEASE_FIRST} on: schedule.learning_rate = 0.0005" in said

    played(tmp_path, nobody_hears, one_hears, it_is_sealed, it_goes_on)


def test_a_coordinator_that_follows_one_without_amendments_knows_how_far_its_leases_reach(tmp_path: Path) -> None:
    async def before(coordinator: GossipCoordinator) -> None:
        train(coordinator, coordinator.nodes[0], 5)
        await coordinator.beat(coordinator.nodes[0])
        reach.append(coordinator.run.beats.directory.reach)
        state = coordinator.run.state
        plain = coordinator.run.beats.directory.plain_members()[:3]
        state.ledger.record_directory(coordinator.run.hall.leases.packed(), {MEMBERS: msgpack.packb(plain)})

    async def after(coordinator: GossipCoordinator) -> None:
        amend(coordinator, RATE)
        assert steps_of(coordinator) == reach

    reach: list[int] = []
    played(tmp_path, before, after)


def test_verify_finds_an_amendment_that_came_too_late(tmp_path: Path) -> None:
    async def scene(coordinator: GossipCoordinator) -> None:
        state = coordinator.run.state
        for node, iterations in zip(coordinator.nodes[:2], (7, 3), strict=True):
            train(coordinator, node, iterations)
            await coordinator.beat(node)
            await coordinator.run.beats.seal()
            if node is coordinator.nodes[0]:
                state.contract = amended(state.contract, Amendment(6, {"schedule.floor": 0.5}, id="late"))
        with pytest.raises(Damaged, match="from iteration 6 on, but a node had done 7 by then"):
            verify_beats(state, lambda _: None, SignatureCheck(state.ledger.signatures))

    played(tmp_path, scene)


def test_a_directory_from_before_amendments_is_read() -> None:
    directory = Directory(SETTINGS)
    directory.reach = 7
    plain = directory.plain_members()
    assert Directory.from_plain(SETTINGS, [], plain, 0.0).reach == 7
    assert Directory.from_plain(SETTINGS, [], plain[:3], 0.0).reach == 0
