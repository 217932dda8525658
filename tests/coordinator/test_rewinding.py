"""What is left of the steps that a run has given up, and what it needs while it goes back, in virtual time."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from simulator.sim_standby import restored
from simulator.world import World
from support.rewound import SMALL, TWICE, played
from support.small import small_contract
from thinwire_coordinator.export.run_facts import facts_of
from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.hall.ledger.kept_replica import KeptReplica
from thinwire_coordinator.hall.ledger.retention import Retention
from thinwire_coordinator.hall.ledger.state_directory import GoOn, RunState, always, open_state
from thinwire_coordinator.hall.standby.follower import Follower
from thinwire_coordinator.hall.standby.items import row_item, snapshot_item
from thinwire_coordinator.kinds import kind_of
from thinwire_coordinator.star import amending
from thinwire_coordinator.star.amending import Rewinding
from thinwire_coordinator.star.memory import star_memory
from thinwire_coordinator.star.replay import replica_at_step
from thinwire_coordinator.star.verify import replayed_stretches
from thinwire_coordinator.verify import verify
from thinwire_node.daemon import RESYNCS_IN_VAIN_MAX
from thinwire_node.part import WentBack
from thinwire_proto.errors import ConfigError, LedgerError, LocalError
from thinwire_proto.exact.amendments import rewinds
from thinwire_proto.exact.replica import Replica


def keep_snapshots(state: RunState, *steps: int) -> None:
    """Leave these snapshots, as `--keep` and other sizes of updates would have."""
    made = [replica_at_step(state, step) for step in steps]
    for step in state.snapshot_steps():
        state.snapshot_path(step).unlink()
    for replica in made:
        state.save_snapshot(replica)


def test_verify_passes_over_what_follows_from_steps_that_are_not_kept() -> None:
    async def look(world: World) -> None:
        state = world.living_coordinator().state
        keep_snapshots(state, 12, 40)
        lines: list[str] = []
        verify(world.folder, lines.append)
        (passed_over,) = [line for line in lines if "were given up" in line]
        assert "steps 22 to 31 were given up, and follow from step 10" in passed_over
        assert any(line.startswith("replayed 17 updates") for line in lines), lines

        row = state.ledger.row(25)  # of the stretch that is passed over
        body = state.bodies.folder / row.body_hash.hex()  # type: ignore[operator]
        data = bytearray(body.read_bytes())
        data[-1] ^= 1
        body.write_bytes(data)
        with pytest.raises(LedgerError, match="step 25"):
            verify(world.folder, lines.append)

    played(TWICE, look)


def test_a_step_that_nothing_leads_to_is_told_from_a_run_without_snapshots() -> None:
    async def look(world: World) -> None:
        state = world.living_coordinator().state
        keep_snapshots(state, 12, 40)
        with pytest.raises(
            ConfigError,
            match="it follows from step 10, and the oldest snapshot is that of step 12",
        ):
            kind_of(state.contract).model_at(state, 25)
        assert kind_of(state.contract).model_at(state, 18).step == 18

    played(TWICE, look)


@pytest.mark.parametrize(
    ("back", "begin", "found"),
    [
        ({}, 3, [(3, 60)]),
        ({20: 10}, 3, [(3, 60)]),
        ({20: 10}, 21, [(21, 60)]),
        ({20: 10, 30: 15}, 12, [(12, 20), (31, 60)]),
        ({20: 10, 30: 15}, 10, [(10, 60)]),
    ],
)
def test_a_replay_leaves_out_what_follows_from_earlier_steps(
    back: dict[int, int], begin: int, found: list[tuple[int, int]]
) -> None:
    assert replayed_stretches(back, begin, 60) == found


KEEPING = SMALL.replace("steps=60", "steps=600").replace("start coordinator", "start coordinator keeping 1")


def test_a_copy_of_a_step_that_is_given_up_by_now_becomes_no_snapshot() -> None:
    """A measurement or a slow disk may hold it up for longer than the run takes to go back."""

    async def look(world: World) -> None:
        coordinator = world.living_coordinator()
        state, copies = coordinator.state, coordinator.swarm.hall.copies
        taken: list[int] = []
        take = copies.take

        async def slowly() -> KeptReplica:
            copy = await take()
            taken.append(copy.step)
            await asyncio.sleep(20)
            return copy

        copies.take = lambda: asyncio.ensure_future(slowly())  # type: ignore[method-assign]
        await world.until(lambda: bool(taken), "a copy is taken")
        world.amend({"rewind": state.snapshot_steps()[-1]})
        await world.until(lambda: bool(rewinds(state.contract)), "the run goes back")
        await asyncio.sleep(40)
        world.living_coordinator()
        assert state.snapshot_steps() == state.snapshots_before(state.ledger.step)

    played(KEEPING, look)


def test_what_leads_to_the_earlier_step_stays_until_its_snapshot_is_written() -> None:
    """If the process dies between the row and the snapshot, the next one computes it again."""

    async def look(world: World) -> None:
        coordinator = world.living_coordinator()
        state = coordinator.state
        await world.until(lambda: state.snapshot_steps()[-1] > 0, "a snapshot")
        oldest = state.snapshot_steps()[0]
        append = state.ledger.append

        def dies_after(*arguments: Any, **named: Any) -> None:
            if not arguments[0].counted:
                state.save_snapshot(replica_at_step(state, oldest + 1))
                Retention(state, 1).trim()
            append(*arguments, **named)
            if not arguments[0].counted:
                world.kill_coordinator()

        state.ledger.append = dies_after  # type: ignore[method-assign]
        world.amend({"rewind": oldest})
        await world.until(lambda: world.sim_coordinator is None, "the coordinator dies")
        world.start_coordinator(keep=1)
        await asyncio.sleep(20)
        await world.check()

    played(KEEPING, look)


def test_a_node_does_not_fetch_snapshots_for_a_run_that_only_goes_back() -> None:
    async def look(world: World) -> None:
        node = world.volunteers["a"].node
        assert node is not None
        world.kill_coordinator()
        await asyncio.sleep(60)  # it has noticed
        told = WentBack("the organizer went back from step 4 to step 3")
        for _ in range(RESYNCS_IN_VAIN_MAX):
            await node._go_back(told)
        with pytest.raises(LocalError, match="went back 6 times in a row, without an update"):
            await node._go_back(told)
        world.start_coordinator()

    played(SMALL + "until step 4\n", look)


def test_the_model_card_counts_what_led_to_the_model() -> None:
    async def look(world: World) -> None:
        state = world.living_coordinator().state
        back, name = min(rewinds(state.contract)), state.held_out_sets[0].name
        for step in (5, 18, back + 4):
            state.ledger.record_loss(step, name, 2.0, "coordinator")
        kind = kind_of(state.contract)
        facts = facts_of(state, kind.model_at(state, back + 5))
        assert dict(kind.in_card(facts.contract, facts.step, facts.contributions))["updates"].startswith("14, from")
        assert [at for curve in facts.curves for at, _ in curve.losses] == [5, back + 4]

    played(SMALL + "until step 20\namend rewind=10\nuntil step 30\n", look)


def test_a_standby_keeps_the_snapshots_that_lead_to_its_head(tmp_path: Path) -> None:
    """It knows from the rows that the run went back; those of steps that were given up do not count."""

    async def look(world: World) -> None:
        first = world.living_coordinator().state
        keep_snapshots(first, 5)
        restored(world.folder, tmp_path / "second", "simulated:1")
        with closing(open_state(tmp_path / "second")) as second:
            follower = Follower(second, "simulated:2", keep=2)
            given_up = first.save_snapshot(replica_at_step(first, 19))
            world.amend({"rewind": 10})
            await world.until(lambda: bool(rewinds(first.contract)), "the run goes back")
            back = min(rewinds(first.contract))
            for step in range(follower.step, back + 1):
                follower.apply(row_item(first, first.fetch_ledger, step, is_newest=step == back))
            for step in (19, back + 1):
                follower.apply(snapshot_item(first.snapshot_path(step), step, 0))
            assert given_up.exists()
            assert second.snapshot_steps() == [5, back + 1]

    played(SMALL + "until step 20\n", look)


AFTER_STANDBY = """contract pace=barrier length=10s wait_for=2 steps=60
steps are sealed after the standby
start coordinator
start standby
nodes a b
start all
until step 8
"""


def test_nothing_is_computed_while_the_row_could_not_be_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    compute = amending.kept_replica

    def noted(folder: Path, step: int, go_on: GoOn = always) -> Replica:
        read.append(step)
        return compute(folder, step, go_on)

    monkeypatch.setattr(amending, "kept_replica", noted)

    async def look(world: World) -> None:
        swarm, order = world.living_coordinator().swarm, Order("one", {"rewind": 5})
        world.second.kill()
        for _ in range(5):
            assert not swarm.amend([order])
            await asyncio.sleep(30)
        assert read == []
        world.second.start()
        await asyncio.sleep(60)
        assert not swarm.amend([order])
        await world.until(lambda: bool(rewinds(swarm.hall.contract)), "the run goes back")
        assert read == [5]

    played(AFTER_STANDBY, look)


def fill_the_disk(state: RunState, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(amending, "disk_usage", lambda folder: shutil.disk_usage(folder)._replace(free=10))


def lose_a_body(state: RunState, patch: pytest.MonkeyPatch) -> None:
    state.bodies.remove([state.ledger.row(2).body_hash.hex()])


def damage_the_snapshot(state: RunState, patch: pytest.MonkeyPatch) -> None:
    state.snapshot_path(0).write_bytes(b"")


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (fill_the_disk, "make room"),
        (lose_a_body, "the parameters of step 5 cannot be computed: step 2"),
        (damage_the_snapshot, "no snapshot can be used"),
    ],
)
def test_what_cannot_be_read_is_refused_and_the_run_goes_on(
    prepare: Callable[[RunState, pytest.MonkeyPatch], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look(world: World) -> None:
        coordinator = world.living_coordinator()
        swarm, step, order = coordinator.swarm, world.step, Order("one", {"rewind": 5})
        read, tries = Rewinding._read, []

        async def slowly(rewinding: Rewinding, to: int) -> Any:
            tries.append(to)
            await asyncio.sleep(10)
            return await read(rewinding, to)

        monkeypatch.setattr(Rewinding, "_read", slowly)
        with tempfile.TemporaryDirectory() as aside:
            shutil.copytree(world.folder, aside, dirs_exist_ok=True)
            prepare(coordinator.state, monkeypatch)
            refused: dict[str, str] = {}
            for _ in range(40):  # the orders are read each second, this one too until it is written as refused
                refused |= swarm.amend([order])
                await asyncio.sleep(1)
            for name in ("snapshots", "updates"):
                shutil.copytree(Path(aside) / name, world.folder / name, dirs_exist_ok=True)
        assert words in refused["one"]
        assert len(tries) == 1
        await world.until(lambda: world.step > step + 3, "the run goes on")
        assert not rewinds(coordinator.state.contract)

    played(SMALL + "until step 8\n", look)


def test_a_coordinator_that_is_stopped_does_not_compute_to_the_end() -> None:
    async def look(world: World) -> None:
        swarm = world.living_coordinator().swarm
        swarm._rewinding.stop()
        swarm.amend([Order("one", {"rewind": 5})])
        await asyncio.sleep(20)
        assert not rewinds(swarm.hall.contract)
        assert not swarm.amend([])

    played(SMALL + "until step 8\n", look)


def test_the_forecast_of_memory_has_the_parameters_of_the_earlier_step() -> None:
    contract = small_contract()
    assert star_memory(contract).named["going back"] == 4 * contract.state_elements


def test_a_node_that_can_fetch_the_snapshot_is_told_to_drop_its_momentum(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may join before the row is out."""
    told: list[bool] = []
    save = RunState.save_snapshot

    def noted(state: RunState, replica: Replica) -> Path:
        told.append(state.went_back_since(replica.step - 1))
        return save(state, replica)

    async def look(world: World) -> None:
        state = world.living_coordinator().state
        monkeypatch.setattr(RunState, "save_snapshot", noted)
        world.amend({"rewind": 3})
        await world.until(lambda: bool(rewinds(state.contract)), "the run goes back")
        await asyncio.sleep(1)
        assert told == [True]

    played(SMALL + "until step 6\n", look)


def test_a_run_that_goes_back_to_the_model_of_its_end_is_complete_again() -> None:
    async def look(world: World) -> None:
        def ended() -> bool:
            return not any(one.running for one in world.volunteers.values())

        state = world.living_coordinator().state
        await world.until(ended, "the nodes leave")
        world.amend({"rewind": 30})
        for volunteer in world.volunteers.values():
            world.start(volunteer)
        await world.until(lambda: world.step >= 70, "steps are made again")
        world.amend({"rewind": 60})
        await world.until(lambda: 60 in rewinds(state.contract).values(), "the run goes back")
        await world.until(ended, "the nodes leave")
        assert state.ledger.step == state.contract.schedule.steps
        again = replica_at_step(state, state.ledger.step)
        assert again.fingerprint(7) == replica_at_step(state, 60).fingerprint(7)

    played(SMALL + "until step 60\n", look)
