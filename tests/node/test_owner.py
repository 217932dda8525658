"""The orders of a machine's owner hold whatever the line to the coordinator does meanwhile.

Node, owner, limits and state directory are real. Part and coordinator are not, so that a session ends when the test
wants.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import thinwire_node.daemon
from thinwire_common.within import Within
from thinwire_node.bootstrap import Ready
from thinwire_node.cli import owner
from thinwire_node.daemon import Node
from thinwire_node.exchange.port import LinkLost
from thinwire_node.limits.keeper import LimitsSource
from thinwire_node.runtime import Clocks
from thinwire_node.settings import NodeOptions, NodeSettings
from thinwire_node.storage.state import NodeState

PATIENCE_S = 60.0


class Session:
    trained_through = None

    def __init__(self) -> None:
        self.told: list[str] = []
        self.may_end = True
        self.lost = asyncio.Event()
        self._over = asyncio.Event()

    async def run(self) -> None:
        over, lost = asyncio.ensure_future(self._over.wait()), asyncio.ensure_future(self.lost.wait())
        await asyncio.wait({over, lost}, return_when=asyncio.FIRST_COMPLETED)
        if self.lost.is_set():
            raise LinkLost("the coordinator has restarted")

    def end(self, how: str) -> None:
        self.told.append(how)
        if self.may_end:
            self._over.set()

    def rest(self) -> None:
        self.end("rest")

    def finish(self) -> None:
        self.end("finish")

    def leave(self) -> None:
        self.end("leave")


class Swarm:
    """The node's part, bootstrap and exchange. may_join: cleared to hold the node while it fetches."""

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.may_join, self.may_leave, self.fetches = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.may_join.set()
        self.may_leave.set()
        self.saves = 0
        self.contract, self.part, self.replica, self.work = None, self, None, None

    async def open_exchange(self, surroundings: Any) -> Any:
        return SimpleNamespace(leave=self._leave, close=self._nothing)

    async def join(self, exchange: Any, name: str) -> Any:
        return SimpleNamespace(contract=None, step=0)

    async def take_up(self, exchange: Any, admission: Any) -> Ready:
        self.fetches.set()
        await self.may_join.wait()
        self.fetches.clear()
        data: Any = SimpleNamespace(loss_unit="token")
        part: Any = self
        return Ready(part, data, data)

    def session(self, *about: Any) -> Session:
        self.sessions.append(Session())
        return self.sessions[-1]

    async def failure(self) -> None:
        await asyncio.Event().wait()

    async def rest(self) -> None:
        self.saves += 1

    async def _leave(self, trained_through: int | None) -> None:
        await self.may_leave.wait()

    async def _nothing(self) -> None:
        pass

    stop = _nothing

    def interrupt(self) -> None:
        pass

    close = interrupt

    def done_in_words(self) -> str:
        return "nothing"


async def until(holds: Callable[[], bool]) -> None:
    async with Within(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


@dataclass(frozen=True)
class Running:
    node: Node
    swarm: Swarm
    task: asyncio.Future[None]


@asynccontextmanager
async def running(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    swarm, stop = Swarm(), asyncio.Event()
    monkeypatch.setattr(thinwire_node.daemon, "name_of", lambda contract: "")
    machine: Any = SimpleNamespace(clocks=Clocks(), open_state=lambda: NodeState(state_dir), kind=lambda name: swarm)
    options = NodeOptions("n", None, None)
    node = Node(NodeSettings("127.0.0.1:1", state_dir, "cpu", options, None, own=LimitsSource()), machine)
    monkeypatch.setattr(node, "_make_bootstrap", lambda state: swarm)
    task = asyncio.ensure_future(node.run(stop))
    try:
        await until(lambda: len(swarm.sessions) == 1)
        yield Running(node, swarm, task)
    finally:
        stop.set()
        swarm.may_join.set()
        swarm.may_leave.set()
        async with Within(PATIENCE_S):
            await task


async def lose_session(swarm: Swarm) -> None:
    """The session is lost, and the node fetches, for as long as the test wants."""
    swarm.may_join.clear()
    swarm.sessions[-1].lost.set()
    await until(swarm.fetches.is_set)


async def test_a_pause_while_the_node_joins_again_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, monkeypatch) as lent:
        await lose_session(lent.swarm)
        owner.pause(tmp_path, [])
        await until(lambda: "paused" in lent.node.doing)
        lent.swarm.may_join.set()
        assert len(lent.swarm.sessions) == 1
        owner.resume(tmp_path)
        await until(lambda: len(lent.swarm.sessions) == 2)


async def test_an_order_to_stop_while_the_node_joins_again_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as lent:
        await lose_session(lent.swarm)
        owner.stop(tmp_path, after_round=True)
        await until(lent.task.done)
        assert len(lent.swarm.sessions) == 1


async def told_to_finish(lent: Running, state_dir: Path) -> Session:
    """Order a stop after the round. Returns the session, whose receipt has not come."""
    session = lent.swarm.sessions[0]
    session.may_end = False
    owner.stop(state_dir, after_round=True)
    await until(lambda: session.told == ["finish"])
    return session


async def test_an_order_to_stop_after_the_round_outlives_the_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as lent:
        session = await told_to_finish(lent, tmp_path)
        session.lost.set()
        await until(lent.task.done)
        assert len(lent.swarm.sessions) == 1


async def test_a_pause_does_not_undo_an_order_to_stop_after_the_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as lent:
        session = await told_to_finish(lent, tmp_path)
        session.may_end = True
        owner.pause(tmp_path, [])
        await until(lent.task.done)
        assert session.told == ["finish", "rest"]
        assert lent.swarm.saves == 1


async def test_a_pause_that_is_over_before_the_session_has_left_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, monkeypatch) as lent:
        lent.swarm.may_leave.clear()
        owner.pause(tmp_path, [])
        await until(lambda: lent.swarm.sessions[0].told == ["rest"])
        owner.resume(tmp_path)
        await until(lambda: lent.node._owner._keeper is not None and lent.node._owner._keeper.resting is None)
        lent.swarm.may_leave.set()
        await until(lambda: len(lent.swarm.sessions) == 2)
        assert lent.node.record.resting == ""
        saves = lent.swarm.saves
        await lose_session(lent.swarm)  # nothing has saved what the second session did
        owner.pause(tmp_path, [])
        await until(lambda: lent.swarm.saves > saves)
