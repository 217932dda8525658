"""A standby gets what its coordinator has, takes nothing else, and a promotion fences the coordinator before it."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from simulator import virtual_time
from simulator.replicas import SharedReplicas
from simulator.sim_coordinator import SimCoordinator, make_state
from simulator.stub import Aborted, Context
from support.sealed_run import make_run
from thinwire_coordinator.hall.access.amendments import Order
from thinwire_coordinator.hall.access.pauses import Pause
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.ledger.backup import LEDGER, back_up, restore
from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_coordinator.hall.rpc.calls import CallRefused
from thinwire_coordinator.hall.standby.follower import Follower
from thinwire_coordinator.hall.standby.items import Position, pack, row_item, snapshot_item, unpack
from thinwire_coordinator.hall.standby.standing import (
    Standing,
    Superseded,
    check_leads,
    keep_standing,
    note_newer,
    promote,
    read_standing,
)
from thinwire_coordinator.hall.standby.tables import TABLES, TableReader, write_changes
from thinwire_coordinator.verify import verify
from thinwire_proto.errors import ConfigError, LedgerError, PayloadError
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.identity.terms import PROMOTION_TERMS, prove_term
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.negotiation import OLDEST_SPOKEN, PROTOCOL

STEPS = 4
Machines = tuple[RunState, RunState]


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    """A run, and a copy of it from when it had one row and its first snapshot."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    make_run(first, STEPS)
    back_up(first, str(tmp_path / "copy"))
    restore(str(tmp_path / "copy"), second)
    with closing(sqlite3.connect(second / LEDGER)) as db, db:
        db.execute("DELETE FROM rows WHERE step >= 1")
        db.execute("DELETE FROM contributions WHERE step >= 1")
        db.execute("DELETE FROM public_keys WHERE rowid > 2")
        db.execute("DELETE FROM leases")
    (second / "snapshots" / "2.safetensors").unlink()
    ahead = open_state(first)
    for row in ahead.ledger.rows(1):
        (second / "updates" / row.body_hash.hex()).unlink()
    return ahead, open_state(second)


def test_a_standby_comes_to_have_what_the_coordinator_has(machines: Machines) -> None:
    first, second = machines
    follower = Follower(second, "standby:7700")
    assert follower.position() == Position("standby:7700", 1, first.ledger.row(0).hash, 0)
    for step in range(1, STEPS):
        follower.apply(row_item(first, first.fetch_ledger, step, is_newest=step == STEPS - 1))
    follower.apply(snapshot_item(first.snapshot_path(2), 2, 0))
    assert [row.hash for row in second.ledger.rows()] == [row.hash for row in first.ledger.rows()]
    assert second.ledger.granted() == first.ledger.granted()
    assert second.snapshot_steps() == [0, 2]
    assert follower.position().step == STEPS
    verify(second.folder, lambda line: None)


def test_a_row_that_is_not_right_is_not_taken(machines: Machines) -> None:
    first, second = machines
    follower = Follower(second, "")
    right = dict(unpack(row_item(first, first.fetch_ledger, 1, is_newest=False)))
    later = row_item(first, first.fetch_ledger, 2, is_newest=False)
    wrong = [{"body": right["body"] + b"."}, {"signature": bytes(64)}, {"row": b"no row"}, {"signed": 7}]
    for item in (later, *(pack(right | change) for change in wrong), b"\xc1", pack({"strange": 1})):
        with pytest.raises(PayloadError):
            follower.apply(item)
    assert second.ledger.step == 1
    follower.apply(pack(right))
    assert second.ledger.step == 2


def test_a_snapshot_goes_on_where_it_stopped(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = machines
    monkeypatch.setattr("thinwire_coordinator.hall.standby.items.SNAPSHOT_PART_BYTES", 1000)
    follower = Follower(second, "")
    for step in (1, 2):
        follower.apply(row_item(first, first.fetch_ledger, step, is_newest=False))
    path = first.snapshot_path(2)
    follower.apply(snapshot_item(path, 2, 0))
    assert (follower.position().begun, follower.position().begun_bytes) == (2, 1000)
    with pytest.raises(PayloadError, match="begins at byte 0 of 1000"):
        follower.apply(snapshot_item(path, 2, 0))
    while (at := follower.position().begun_bytes) or not second.snapshot_path(2).exists():
        follower.apply(snapshot_item(path, 2, at))
    assert second.snapshot_path(2).read_bytes() == path.read_bytes()


def tables_of(folder: Path) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, tables in TABLES.items():
        with closing(sqlite3.connect(folder / name)) as db:
            found |= {table: db.execute(f"SELECT rowid, * FROM {table} ORDER BY rowid").fetchall() for table in tables}
    return found


def test_invites_pauses_orders_and_bans_come_along(tmp_path: Path) -> None:
    folders = tmp_path / "first", tmp_path / "second"
    for folder in folders:
        folder.mkdir()
        make_run(folder, 1)
        AccessStore(folder, needs_invite=True).close()
    first, second = folders
    access, reader = AccessStore(first, needs_invite=True), TableReader(first)
    access.invites.make(b"t" * 16, name="all", now=time.time(), uses_max=None, per_address_max=None, expires=None)
    access.pauses.begin(Pause(1.0, None, "a night's rest"))
    access.amendments.add(Order("one", {"schedule.learning_rate": 0.1}), ())
    write_changes(second, reader.changes())
    assert tables_of(second) == tables_of(first)
    assert reader.changes() == {}

    access.pauses.end()
    state = open_state(first)
    state.ledger.record_void(1, 7, "nobody came")
    state.ledger.record_names({"n" * 32: "a name"})
    with closing(sqlite3.connect(first / "access.sqlite")) as db, db:
        db.execute("DELETE FROM invites")
    changes = reader.changes()
    assert sorted(changes) == ["invites", "names", "settings", "voids"]
    assert changes["invites"]["gone"] == [1]
    write_changes(second, changes)
    assert tables_of(second) == tables_of(first)
    with pytest.raises(PayloadError):
        write_changes(second, {"voids": {"rows": [[1, 2]]}})
    assert tables_of(second) == tables_of(first)


def test_a_standby_does_not_lead_until_it_is_promoted(tmp_path: Path) -> None:
    make_run(tmp_path, 1)
    assert check_leads(tmp_path) == Standing()
    keep_standing(tmp_path, Standing("first:7700"))
    with pytest.raises(ConfigError, match="is a standby of the coordinator at first:7700"):
        check_leads(tmp_path)
    assert promote(tmp_path) == promote(tmp_path) == read_standing(tmp_path) == check_leads(tmp_path)
    assert check_leads(tmp_path).promoted == PROMOTION_TERMS
    note_newer(tmp_path, 2 * PROMOTION_TERMS)
    for call in (check_leads, promote):
        with pytest.raises(Superseded, match="seals nothing any more"):
            call(tmp_path)


def test_restarts_never_reach_the_term_of_a_promotion(tmp_path: Path) -> None:
    make_run(tmp_path, 1)
    ledger = open_state(tmp_path).ledger
    assert [ledger.begin_term().number, ledger.begin_term().number] == [1, 2]
    assert ledger.begin_term(PROMOTION_TERMS).number == PROMOTION_TERMS
    assert ledger.begin_term(PROMOTION_TERMS).number == PROMOTION_TERMS + 1
    ledger.begin_term(2 * PROMOTION_TERMS - 1)
    with pytest.raises(LedgerError, match="no number left"):
        ledger.begin_term(PROMOTION_TERMS)


def with_coordinator(folder: Path, act: Callable[[SimCoordinator], Awaitable[None]]) -> None:
    """Act beside a simulated coordinator."""
    make_state(folder, {}, 1)

    async def scene() -> None:
        coordinator = SimCoordinator(folder, SharedReplicas(), random.Random(1), 1)
        try:
            await act(coordinator)
        finally:
            coordinator.kill()

    virtual_time.run(scene())


async def one(message: pb.FollowRequest) -> AsyncIterator[pb.FollowRequest]:
    yield message
    await asyncio.Event().wait()


async def first_part(coordinator: SimCoordinator, message: pb.FollowRequest) -> pb.FollowPart:
    assert coordinator.service is not None
    async with aclosing(coordinator.service.Follow(one(message), Context(()))) as parts:  # type: ignore[type-var,arg-type]
        async for part in parts:
            return part
    raise AssertionError("the stream ended")


async def greeted(coordinator: SimCoordinator, key: SecretKey) -> pb.FollowRequest:
    assert coordinator.service is not None
    said = await coordinator.service.Hello(pb.HelloRequest(nonce=bytes(32)), Context(()))  # type: ignore[arg-type]
    return pb.FollowRequest(challenge=said.challenge, signature=key.sign(statements.follow(said.challenge)))


def test_only_the_key_of_the_run_follows(tmp_path: Path) -> None:
    async def act(coordinator: SimCoordinator) -> None:
        for message in (pb.FollowRequest(), await greeted(coordinator, SecretKey())):
            with pytest.raises(CallRefused, match="does not hold the key"):
                await first_part(coordinator, message)
        message = await greeted(coordinator, coordinator.state.key)
        assert "leases" in unpack((await first_part(coordinator, message)).data)
        with pytest.raises(CallRefused, match="does not hold the key"):
            await first_part(coordinator, message)  # an answer that was heard is of no use
        message = await greeted(coordinator, coordinator.state.key)
        message.step = 9
        with pytest.raises(Aborted, match="its ledger has lost rows"):
            await first_part(coordinator, message)

    with_coordinator(tmp_path / "run", act)


def test_a_promotion_that_the_key_has_not_signed_ends_nothing(tmp_path: Path) -> None:
    async def act(coordinator: SimCoordinator) -> None:
        run, contract = coordinator.swarm, coordinator.state.contract.hash
        assert coordinator.service is not None
        forged = [prove_term(SecretKey(), contract, PROMOTION_TERMS)]
        forged += [prove_term(coordinator.state.key, bytes(32), PROMOTION_TERMS)]  # of another run of this key
        for shown in forged:
            request = pb.JoinRequest(
                protocol=PROTOCOL,
                protocol_oldest=OLDEST_SPOKEN,
                public_key=SecretKey().public.data,
                term=shown.number,
                term_signature=shown.signature,
            )
            with pytest.raises(CallRefused):  # by the door
                await coordinator.service.Join(request, Context(()))  # type: ignore[arg-type]
            assert not run.superseded
        proven = prove_term(coordinator.state.key, contract, PROMOTION_TERMS)
        message = await greeted(coordinator, coordinator.state.key)
        message.term, message.term_signature = proven.number, proven.signature
        with pytest.raises(Aborted) as ended:
            await first_part(coordinator, message)
        assert ended.value.code is grpc.StatusCode.UNAVAILABLE
        assert isinstance(run.tasks.failed.exception(), Superseded)
        assert run.keeper.why_away()
        with pytest.raises(Superseded):
            check_leads(coordinator.state.folder)

    with_coordinator(tmp_path / "run", act)
