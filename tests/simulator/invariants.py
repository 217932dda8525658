"""The invariants of a simulated swarm: what must hold whatever was killed, lost or late."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from simulator.sim_coordinator import SimCoordinator
from simulator.volunteer import Broken, work_of
from thinwire_coordinator.verify import verify
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.amendments import rewinds
from thinwire_proto.exact.topk import dropped_by_update
from thinwire_proto.exact.votes import Levels, Merged
from thinwire_proto.wire.rows import Row

if TYPE_CHECKING:
    from simulator.world import World


async def check(world: World) -> str:
    """Check all invariants. Returns a hash of the history: equal hashes mean equal histories."""
    sim_coordinator = world.living_coordinator()
    _check_counted_once(world, sim_coordinator)
    _check_merged(world, sim_coordinator)
    _check_left_out(world, sim_coordinator)
    _check_leases(world, sim_coordinator)
    await _check_replicas(world, sim_coordinator)
    verify(world.folder, lambda line: None)
    digest = hashlib.sha256()
    for row in sim_coordinator.state.ledger.rows():
        digest.update(row.hash)
    return digest.hexdigest()


def _check_counted_once(world: World, sim_coordinator: SimCoordinator) -> None:
    counted: dict[int, tuple[int, str]] = {}
    for row in sim_coordinator.state.ledger.rows():
        for entry in row.counted:
            for position in world.sent.get(entry.contribution, ()):
                if position in counted:
                    raise Broken(f"position {position} is in step {row.step} and in {counted[position]}")
                counted[position] = (row.step, entry.node)
    settled = set(counted)
    for volunteer in world.volunteers.values():
        trainer = volunteer.machine.trainer if volunteer.machine else None
        if not volunteer.running or trainer is None:
            continue
        if both := trainer.holds() & settled:
            raise Broken(f"{volunteer.name} still has counted positions in its momentum: {sorted(both)[:5]}")
        work = work_of(volunteer.node) if volunteer.node else None
        out = work.pending.sent.positions if work and work.pending else frozenset()  # type: ignore[attr-defined]
        if rewinds(sim_coordinator.state.contract):
            out |= volunteer.sent  # what had no receipt was dropped with the momentum; others train on it again
        if neither := trainer.trained - trainer.holds() - trainer.lost() - settled - out - world.second.lost_positions:
            raise Broken(f"{volunteer.name} has lost positions that it trained on: {sorted(neither)[:5]}")


def _check_merged(world: World, sim_coordinator: SimCoordinator) -> None:
    """Without update_topk: each update is exactly the merge of the contributions in its row."""
    demo, layout = sim_coordinator.state.contract.demo, sim_coordinator.swarm.view.layout
    if demo.update_topk:
        return
    for row in _with_bodies(sim_coordinator):
        merger = merger_of(sim_coordinator.state.contract, layout, row.step)
        for entry in row.counted:
            merger.add(world.extractions[entry.contribution].votes(), entry.weight)
        found, due = sim_coordinator.state.update(row).merged, merger.merged()
        pairs: list[tuple[Any, Any]]
        if isinstance(due, Levels):
            assert isinstance(found, Levels)
            pairs = [(found.values, due.values), (found.scales, due.scales)]
        else:
            assert isinstance(found, Merged)
            pairs = [(found.components, due.components), (found.values, due.values)]
        if not all(np.array_equal(one, other) for one, other in pairs):
            raise Broken(f"the update of step {row.step} is not the merge of its row's contributions")


def _check_left_out(world: World, sim_coordinator: SimCoordinator) -> None:
    """With update_topk: each node that kept its momentum has put back exactly the components that updates left out,
    once."""
    contract, layout = sim_coordinator.state.contract, sim_coordinator.swarm.view.layout
    if not contract.demo.update_topk:
        return
    expected: dict[int, tuple[int, frozenset[int]]] = {}
    for row in _with_bodies(sim_coordinator):
        merged = sim_coordinator.state.update(row).merged
        assert isinstance(merged, Merged)  # with update_topk, updates hold votes
        for sent in (world.extractions[name] for name in row.contributions):
            missing = dropped_by_update(sent.components.numpy(), merged, layout, contract.demo.update_topk)
            expected[sent.number] = (row.step, frozenset(sent.components[torch.from_numpy(missing)].tolist()))
    world.put_back_in_part = 0
    for volunteer in world.volunteers.values():
        trainer = volunteer.machine.trainer if volunteer.machine else None
        work = work_of(volunteer.node) if volunteer.node else None
        if not volunteer.running or trainer is None or work is None or work.replica is None:
            continue
        step, synthetic = work.replica.step, trainer.synthetic
        due = {
            number: missing
            for number, (at, missing) in expected.items()
            if at < step and number in synthetic.extractions
        }
        if sorted(synthetic.left_out) != sorted((number, missing) for number, missing in due.items() if missing):
            raise Broken(f"{volunteer.name} did not put back exactly the components that updates left out")
        world.put_back_in_part += len(synthetic.left_out)


def _check_leases(world: World, sim_coordinator: SimCoordinator) -> None:
    cursor, free, held = sim_coordinator.swarm.hall.leases.plain()
    seen: set[int] = set()
    for runs in (free, *(part for _, _, granted, trained, _ in held for part in (granted, trained))):
        for start, count in runs:
            positions = set(range(start, start + count))
            if positions & seen or start + count > cursor:
                raise Broken(f"positions {start} to {start + count} are granted twice or beyond the cursor")
            seen |= positions


async def _check_replicas(world: World, sim_coordinator: SimCoordinator) -> None:
    by_step: dict[int, int] = {}
    step, fingerprint = await sim_coordinator.swarm.fingerprint()
    by_step[step] = fingerprint
    for volunteer in world.volunteers.values():
        work = work_of(volunteer.node) if volunteer.node and volunteer.running else None
        replica = work.replica if work else None
        if replica is not None:
            equal = by_step.setdefault(replica.step, replica.model_fingerprint())
            if replica.model_fingerprint() != equal:
                raise Broken(f"{volunteer.name}: its replica differs at step {replica.step}")


def _with_bodies(sim_coordinator: SimCoordinator) -> Iterator[Row]:
    """The rows whose updates are stored."""
    return sim_coordinator.state.ledger.rows(sim_coordinator.state.snapshot_steps()[0])
