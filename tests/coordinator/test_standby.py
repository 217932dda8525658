"""A standby gets what its coordinator has, takes nothing else, and a promotion fences the coordinator before it."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import time
from contextlib import aclosing, closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import numpy as np
import pytest

from support.sealed_run import make_run
from support.token_folder import VOCABULARY, write_tokens
from thinwire_coordinator.hall.access.settings import Order, Pause
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.ledger.backup import LEDGER, back_up, restore
from thinwire_coordinator.hall.ledger.creation import create_state
from thinwire_coordinator.hall.ledger.identity import open_identity
from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_coordinator.hall.standby.follower import Follower
from thinwire_coordinator.hall.standby.items import (
    TABLES,
    Position,
    TableReader,
    pack,
    row_item,
    snapshot_item,
    terms_item,
    unpack,
    write_changes,
)
from thinwire_coordinator.hall.standby.keeper import Keeper, StandbyAway
from thinwire_coordinator.hall.standby.standing import (
    Standing,
    Superseded,
    check_leads,
    keep_standing,
    note_newer,
    promote,
    read_standing,
)
from thinwire_coordinator.hall.workers import Workers
from thinwire_coordinator.star.feed import Feed
from thinwire_coordinator.star.replay import replica_at_head
from thinwire_coordinator.star.sealing import Sealer
from thinwire_coordinator.verify import verify
from thinwire_proto.contract import RunSpec
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.errors import ConfigError, LedgerError, PayloadError
from thinwire_proto.exact.votes import Merger
from thinwire_proto.identity import statements
from thinwire_proto.identity.terms import PROMOTION_TERMS
from thinwire_proto.wire.rows import Row

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
    assert replace(follower.position(), process=b"") == Position("standby:7700", 1, first.ledger.row(0).hash, 0)
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


def test_a_row_of_another_history_is_not_taken_though_the_coordinator_has_signed_it(machines: Machines) -> None:
    first, second = machines
    right = dict(unpack(row_item(first, first.fetch_ledger, 1, is_newest=False)))
    other = replace(first.ledger.row(1), previous=bytes(32))
    signature = first.key.sign(statements.row(other.hash))
    with pytest.raises(PayloadError, match="does not follow that of step 0"):
        Follower(second, "").apply(pack(right | {"row": other.canonical(), "signature": signature}))
    assert second.ledger.step == 1


def test_a_standby_of_another_history_cannot_follow(machines: Machines) -> None:
    first, _ = machines
    position = Position("standby:7700", 2, first.ledger.row(1).hash, 0)
    with closing(Workers()) as workers:
        keeper = Keeper(first, workers, time.monotonic)
        assert keeper._why_not(position) == ""
        assert "another one than this coordinator's" in keeper._why_not(replace(position, head=bytes(32)))


def test_a_held_out_set_comes_with_the_row_that_adds_it(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    write_tokens(tmp_path / "data", {"wiki": [200]})
    model = {"vocabulary": VOCABULARY, "context": 9, "width": 64, "layers": 1, "heads": 2, "hidden": 64}
    data = {"kind": "tokens", "folder": str(tmp_path / "data")}
    create_state(first, RunSpec.model_validate({"model": model, "data": data}), None)
    open_identity(first)
    open_state(first).close()
    back_up(first, str(tmp_path / "copy"))
    restore(str(tmp_path / "copy"), second)
    state, tokens = open_state(second), np.arange(10, dtype="<u2").tobytes()
    follower, name, body = Follower(state, ""), hashlib.sha256(tokens).hexdigest(), b"body"
    shard = {"hash": name, "size": len(tokens), "tokens": 10, "text_bytes": 30}
    extras = {"amendments": [Amendment(0, {"data.held_out": {"news": shard}}).written]}
    row = Row(0, 0, 1, 0, 0, hashlib.sha256(body).digest(), len(body), (), bytes(32), extras)
    right: dict[str, Any] = {"row": row.canonical(), "signature": state.key.sign(statements.row(row.hash))}
    right |= {"signed": [], "body": body}
    wrong: list[dict[str, Any]] = [{}, {"blobs": {}}, {"blobs": {name: tokens + b"."}}]
    for blobs in wrong:
        with pytest.raises(PayloadError):
            follower.apply(pack(right | blobs))
    assert state.ledger.step == 0
    follower.apply(pack(right | {"blobs": {name: tokens}}))
    assert (state.blobs.folder / name).read_bytes() == tokens
    assert [found.name for found in open_state(second).held_out_sets][-1] == "news"


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


def test_a_promotion_comes_after_all_terms_that_a_standby_may_have_seen(machines: Machines) -> None:
    first, second = machines
    keep_standing(second.folder, Standing("first:7700"))
    first.ledger.begin_term(PROMOTION_TERMS)  # the first machine was itself promoted, after the backup
    Follower(second, "").apply(terms_item(first.ledger))
    assert second.ledger.terms() == first.ledger.terms()
    assert promote(second.folder).promoted == 2 * PROMOTION_TERMS

    keep_standing(second.folder, Standing("first:7700"))
    with closing(sqlite3.connect(second.folder / LEDGER)) as db, db:  # or a row of that term has come alone
        db.execute("DELETE FROM terms")
        db.execute("UPDATE rows SET term = ?", (2 * PROMOTION_TERMS,))
    assert promote(second.folder).promoted == 3 * PROMOTION_TERMS


def test_restarts_never_reach_the_term_of_a_promotion(tmp_path: Path) -> None:
    make_run(tmp_path, 1)
    ledger = open_state(tmp_path).ledger
    assert [ledger.begin_term().number, ledger.begin_term().number] == [1, 2]
    assert ledger.begin_term(PROMOTION_TERMS).number == PROMOTION_TERMS
    assert ledger.begin_term(PROMOTION_TERMS).number == PROMOTION_TERMS + 1
    ledger.begin_term(2 * PROMOTION_TERMS - 1)
    with pytest.raises(LedgerError, match="no number left"):
        ledger.begin_term(PROMOTION_TERMS)


def test_a_coordinator_that_was_replaced_seals_nothing_with_and_without_a_standby(machines: Machines) -> None:
    state, _ = machines
    for needed in (False, True):
        with closing(Workers()) as workers:
            keeper = Keeper(state, workers, time.monotonic, needed=needed)
            assert bool(keeper.why_away()) == needed
            keeper.superseded = True
            assert keeper.why_away() == "another machine was promoted to be the coordinator"
            assert keeper.holds()
            sealer = Sealer(state, replica_at_head(state), Feed(AsyncMock(), STEPS), workers, time.monotonic, keeper)
            merger = Merger(sealer._replica.layout.components)
            row = Row(STEPS, STEPS, 1, 7, 0, b"", 0, (), b"")
            with pytest.raises(StandbyAway, match="another machine was promoted"):
                asyncio.run(sealer.seal(row, (), merger))
    assert state.ledger.step == STEPS


async def test_a_round_is_announced_only_when_the_standby_has_the_leases_of_it(machines: Machines) -> None:
    """Nodes train on them, and a standby that is promoted would give the same samples to others."""
    state, _ = machines
    with closing(Workers()) as workers:
        keeper = Keeper(state, workers, time.monotonic, needed=True)
        following = keeper.begin(Position("", STEPS, state.ledger.row(STEPS - 1).hash, STEPS))
        async with aclosing(following.items()) as items:  # type: ignore[type-var]
            await anext(items)  # whatever was there before
            keeper.granted()
            waiting = asyncio.ensure_future(keeper.has_leases())
            sent = 1
            while following._sent_leases < keeper.leases:
                await anext(items)
                sent += 1
            await asyncio.sleep(0.01)
            assert not waiting.done()
            following.synced(sent)
            await waiting
            keeper.granted()
            waiting = asyncio.ensure_future(keeper.has_leases())
            keeper.ended(following)  # a round does not wait for a standby that is gone
            await waiting
