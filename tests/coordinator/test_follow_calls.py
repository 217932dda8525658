"""The call with which a standby follows: who may, one at a time, and what a coordinator does without any."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, closing, suppress
from pathlib import Path

import grpc
import pytest

from simulator import virtual_time
from simulator.replicas import SharedReplicas
from simulator.sim_coordinator import SimCoordinator, make_state
from simulator.stub import Aborted, Context
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.rpc.calls import CallRefused
from thinwire_coordinator.hall.standby.items import VERSION, Position, unpack
from thinwire_coordinator.hall.standby.standing import (
    Superseded,
    check_leads,
)
from thinwire_coordinator.hall.web.organizer import AccessPanel
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.identity.terms import PROMOTION_TERMS, prove_term
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.negotiation import OLDEST_SPOKEN, PROTOCOL


def with_coordinator(
    folder: Path, act: Callable[[SimCoordinator], Awaitable[None]], *, after_standby: bool = False
) -> None:
    """Act beside a simulated coordinator."""
    make_state(folder, {}, 1)

    async def scene() -> None:
        shared = SharedReplicas()
        coordinator = SimCoordinator(folder, shared, random.Random(1), 1, after_standby=after_standby)
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
    return pb.FollowRequest(
        challenge=said.challenge,
        signature=key.sign(statements.follow(said.challenge)),
        contract=coordinator.state.contract.hash,
        items=VERSION,
    )


def test_only_the_key_of_the_run_follows(tmp_path: Path) -> None:
    async def act(coordinator: SimCoordinator) -> None:
        for message in (pb.FollowRequest(), await greeted(coordinator, SecretKey())):
            with pytest.raises(CallRefused, match="does not hold the key"):
                await first_part(coordinator, message)
        message = await greeted(coordinator, coordinator.state.key)
        assert "terms" in unpack((await first_part(coordinator, message)).data)["tables"]
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


def test_a_standby_of_another_run_or_version_is_refused(tmp_path: Path) -> None:
    async def act(coordinator: SimCoordinator) -> None:
        for field, value, why in (("contract", bytes(32), "another run of this key"), ("items", 0, "same thinwire")):
            message = await greeted(coordinator, coordinator.state.key)
            setattr(message, field, value)
            with pytest.raises(Aborted, match=why) as refused:
                await first_part(coordinator, message)
            assert refused.value.code is grpc.StatusCode.FAILED_PRECONDITION

    with_coordinator(tmp_path / "run", act)


def test_a_second_standby_waits_until_the_first_is_gone(tmp_path: Path) -> None:
    async def act(coordinator: SimCoordinator) -> None:
        keeper = coordinator.swarm.keeper

        async def follows(process: bytes) -> None:
            message = await greeted(coordinator, coordinator.state.key)
            message.address, message.process = f"{process.decode()}:7700", process
            assert coordinator.service is not None
            parts = coordinator.service.Follow(one(message), Context(()))  # type: ignore[arg-type]
            async with aclosing(parts):  # type: ignore[type-var]
                async for _ in parts:
                    pass

        first = asyncio.ensure_future(follows(b"first"))
        await asyncio.sleep(1)
        with pytest.raises(Aborted, match="another standby at first:7700 follows") as refused:
            await follows(b"second")
        assert refused.value.code is grpc.StatusCode.UNAVAILABLE  # it tries again
        again = asyncio.ensure_future(follows(b"first"))  # before the coordinator knows that the line broke
        await asyncio.sleep(1)
        assert first.done()
        assert keeper.address == "first:7700"
        again.cancel()
        with suppress(asyncio.CancelledError):
            await again
        second = asyncio.ensure_future(follows(b"second"))
        await asyncio.sleep(1)
        assert keeper.in_words() == "second:7700 follows, has all 0 steps, and the snapshot of step 0"
        second.cancel()

    with_coordinator(tmp_path / "run", act)


def test_no_round_begins_while_no_standby_follows(tmp_path: Path) -> None:
    async def act(coordinator: SimCoordinator) -> None:
        run = coordinator.swarm
        run.driver.attend("n" * 32)
        await asyncio.sleep(60)
        assert run.driver.machine.next_round == 0
        assert run.view.condition == "no standby follows, and steps are sealed only when it has them"
        assert run.keeper.in_words() == "none follows"
        following = run.keeper.begin(Position("standby:7700", 0, b"", 0))
        await asyncio.sleep(60)
        assert run.driver.machine.next_round > 0
        run.keeper.ended(following)
        await asyncio.sleep(60)
        begun = run.driver.machine.next_round
        await asyncio.sleep(60)
        assert run.driver.machine.next_round == begun
        assert run.keeper.in_words() == "none follows; the last one was at standby:7700"
        with closing(AccessStore(tmp_path / "run")) as access:
            assert AccessPanel(access, tmp_path / "run", run).state({})["standby"] == run.keeper.in_words()

    with_coordinator(tmp_path / "run", act, after_standby=True)


def test_a_coordinator_that_was_replaced_ends_although_it_cannot_write_that_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(coordinator: SimCoordinator) -> None:
        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("thinwire_coordinator.hall.standby.standing.replace_synced", full)
        coordinator.swarm.give_way(PROMOTION_TERMS)
        assert isinstance(coordinator.swarm.tasks.failed.exception(), Superseded)
        published = asyncio.ensure_future(coordinator.swarm.keeper.has_row())  # of a row that was being written
        await asyncio.sleep(60)
        assert not published.done()
        published.cancel()

    with_coordinator(tmp_path / "run", act)
