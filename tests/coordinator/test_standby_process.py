"""The process of a standby outlives a disk that fails, and finds early what would keep it from taking over."""

from __future__ import annotations

import argparse
import asyncio
import logging
import socket
import sqlite3
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, closing, suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from deploy.local_swarm.ports import free_addresses
from support.sealed_run import make_run
from thinwire_coordinator import standby
from thinwire_coordinator.cli import access
from thinwire_coordinator.cli.backup import back_up as back_up_command
from thinwire_coordinator.cli.status_client import ask_status_of
from thinwire_coordinator.hall.access.settings import PUBLIC_TLS
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.ledger.backup import LEDGER, back_up, restore
from thinwire_coordinator.hall.ledger.state_directory import lock_state, open_state
from thinwire_coordinator.hall.rpc.following import FollowedAddress
from thinwire_coordinator.hall.settings import CoordinatorSettings
from thinwire_coordinator.hall.standby.follower import Follower
from thinwire_coordinator.hall.standby.items import Change, Position, TableReader, row_item, snapshot_item
from thinwire_coordinator.hall.standby.keeper import Keeper
from thinwire_coordinator.hall.standby.standing import (
    Standing,
    Superseded,
    keep_standing,
    note_newer,
    promote,
    read_standing,
)
from thinwire_coordinator.hall.workers import Workers
from thinwire_coordinator.standby import Standby
from thinwire_proto.contract import RunSpec
from thinwire_proto.errors import ConfigError, RemoteError

STEPS = 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "run"
    found.mkdir()
    make_run(found, STEPS)
    return found


def settings(
    folder: Path, port: int = 0, run: RunSpec | None = None, bodies: str | None = None, follow: str = "127.0.0.1:1"
) -> CoordinatorSettings:
    return CoordinatorSettings(folder, f"127.0.0.1:{port}", run, 1, 20, bodies=bodies, follow=follow)


async def until(holds: Callable[[], object]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def test_a_standby_goes_on_once_its_disk_can_be_written_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    back_up(folder, str(tmp_path / "copy"))
    restore(str(tmp_path / "copy"), tmp_path / "standby")
    with closing(sqlite3.connect(tmp_path / "standby" / LEDGER)) as db, db:  # as if the backup had been made before
        db.execute("DELETE FROM rows WHERE step >= 1")
        db.execute("DELETE FROM contributions WHERE step >= 1")
        db.execute("DELETE FROM public_keys WHERE rowid > 2")
    (tmp_path / "standby" / "snapshots" / "2.safetensors").unlink()
    monkeypatch.setattr("thinwire_coordinator.standby.BACKOFF_FIRST_S", 0.01)
    updates, away = tmp_path / "standby" / "updates", tmp_path / "away"
    stop, attempts = asyncio.Event(), list[int]()

    async def follow_here(
        _: FollowedAddress, position: Position, apply: Callable[[bytes], Awaitable[None]], begun: Callable[[], None]
    ) -> None:
        begun()
        if not attempts:
            updates.rename(away)
            updates.touch()
        attempts.append(position.step)
        with closing(open_state(folder)) as first:
            for step in range(position.step, STEPS):
                await apply(row_item(first, first.fetch_ledger, step, is_newest=False))
        stop.set()

    async def scene() -> None:
        life = asyncio.ensure_future(Standby(settings(tmp_path / "standby")).run(stop))
        await until(lambda: "cannot write what it is sent" in caplog.text or life.done())
        assert not life.done()
        updates.unlink()
        away.rename(updates)
        assert not await life

    monkeypatch.setattr("thinwire_coordinator.standby.follow_coordinator", follow_here)
    with caplog.at_level(logging.WARNING):
        asyncio.run(scene())
    with closing(open_state(tmp_path / "standby")) as state:
        assert state.ledger.step == STEPS


def test_tables_are_closed_behind_a_read_that_the_end_of_the_stream_overtakes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, goes_on, order = threading.Event(), threading.Event(), list[str]()
    read, close = TableReader.changes, TableReader.close

    def slow_read(reader: TableReader) -> dict[str, Change]:
        reads.set()
        goes_on.wait()
        found = read(reader)
        order.append("read")
        return found

    def noted_close(reader: TableReader) -> None:
        order.append("closed")
        close(reader)

    monkeypatch.setattr(TableReader, "changes", slow_read)
    monkeypatch.setattr(TableReader, "close", noted_close)

    async def scene() -> None:
        workers = Workers()
        with closing(open_state(folder)) as state:
            keeper = Keeper(state, workers, time.monotonic)

            async def send() -> None:
                async with aclosing(keeper.begin(Position("", STEPS, b"", STEPS)).items()) as items:  # type: ignore[type-var]
                    async for _ in items:
                        pass

            stream = asyncio.ensure_future(send())
            await until(reads.is_set)
            stream.cancel()
            with suppress(asyncio.CancelledError):
                await stream
            goes_on.set()
            await until(lambda: len(order) == 2)
            await asyncio.to_thread(workers.close)

    asyncio.run(scene())
    assert order == ["read", "closed"]


def test_a_read_that_fails_once_is_no_promotion(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count(1)

    def fails_once(state_dir: Path) -> Standing:
        if (number := next(calls)) == 2:
            raise OSError(24, "Too many open files")
        return replace(read_standing(state_dir), promoted=1 if number == 4 else 0)

    monkeypatch.setattr(standby, "read_standing", fails_once)
    monkeypatch.setattr(standby, "ORDERS_READ_S", 0.01)
    asyncio.run(Standby(settings(folder))._promoted())
    assert next(calls) == 5


def test_what_would_keep_a_standby_from_taking_over_is_said_when_it_starts(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def start(**others: object) -> None:
        stop = asyncio.Event()
        stop.set()
        asyncio.run(Standby(settings(folder, **others)).run(stop))  # type: ignore[arg-type]

    start()
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="the port is in use"):
        start(port=taken.getsockname()[1])
    with pytest.raises(ConfigError, match="the updates of this run are at"):
        start(bodies=str(folder.parent / "elsewhere"))
    with pytest.raises(ConfigError, match="holds a run with another contract"):
        start(run=RunSpec())
    with closing(AccessStore(folder)) as store:
        store.settings.put(PUBLIC_TLS, "1")
    start()
    assert "cannot join this machine once it is promoted" in caplog.text
    assert "nodes are told" not in caplog.text
    (address,) = free_addresses(1)
    start(port=int(address.rpartition(":")[2]), follow="first.invalid:7700")
    assert f"nodes are told that the standby is at {address}; --address says where" in caplog.text


def test_orders_are_refused_where_nobody_would_hear_of_them(folder: Path, tmp_path: Path) -> None:
    nobody = argparse.Namespace(json=False, because="", until=None, length_s=None)
    keep_standing(folder, Standing("first:7700"))
    for name in access.COMMANDS.keys() - access.LISTS:
        says = "a standby of the coordinator at first:7700: that one does not hear of orders here"
        with pytest.raises(ConfigError, match=says):
            access.run(name, folder, nobody)
    access.run("nodes", folder, nobody)
    with pytest.raises(RemoteError, match="is a standby with 3 steps, and answers nobody: it follows"):
        ask_status_of(folder)
    note_newer(folder, 1_000_000)
    with pytest.raises(Superseded):
        access.run("resume", folder, nobody)
    with pytest.raises(Superseded):
        back_up_command(folder, str(tmp_path / "copy"))


def test_a_coordinator_that_runs_is_not_promoted(folder: Path) -> None:
    lock = lock_state(folder)
    with pytest.raises(ConfigError, match="another coordinator runs on this state directory"):
        promote(folder)
    keep_standing(folder, Standing("first:7700"))
    assert promote(folder).promoted  # the running standby reads it
    lock.release()


def test_a_snapshot_that_is_damaged_at_its_source_is_not_fetched_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(open_state(folder)) as state:
        source = state.snapshot_path(2)
        item = snapshot_item(source, 2, 0)
        source.rename(source.with_suffix(".damaged"))
        follower = Follower(state, "")
        data = source.with_suffix(".damaged").read_bytes()
        source.with_suffix(".damaged").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        item = snapshot_item(source.with_suffix(".damaged"), 2, 0)
        with caplog.at_level(logging.WARNING):
            follower.apply(item)
        assert "is not kept, because it is damaged at its source" in caplog.text
        assert state.snapshot_steps() == [0]
        assert follower.position().snapshot == 2
