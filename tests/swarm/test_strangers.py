"""Tests that the door refuses strangers, each for its own reason, and that the run goes on as if nobody had come."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import grpc
import pytest

from support.raw_calls import hello, in_session, join
from support.raw_node import RawNode, opened
from support.real import END_S, RealSwarm, ended, real_swarm, run_text
from thinwire_coordinator.hall.access.store import AccessStore
from thinwire_coordinator.hall.rpc.calls import NO_SESSION, SESSION_REPLACED
from thinwire_node.exchange.coordinator.dial import prove
from thinwire_proto.identity import statements
from thinwire_proto.identity.invite import parse_invite
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.metadata import REASON, REPLACED
from thinwire_proto.wire.negotiation import PROTOCOL
from thinwire_proto.wire.service_pb2_grpc import SwarmStub

DENIED, WAIT = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.RESOURCE_EXHAUSTED
Answer = tuple[grpc.StatusCode, str, str]


def answer(call: Callable[[], object]) -> Answer:
    """(code, reason in one word, text) of a call that is refused."""
    with pytest.raises(grpc.RpcError) as error:
        call()
    metadata: Any = error.value.trailing_metadata()
    return error.value.code(), dict(metadata or ()).get(REASON, ""), error.value.details() or ""


@pytest.fixture
def stub(swarm: RealSwarm) -> Iterator[SwarmStub]:
    swarm.coordinator(run_text(50))
    with swarm.channel() as channel:
        yield SwarmStub(channel)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSwarm]:
    """A swarm that several tests share, each with nodes of its own."""
    with real_swarm(tmp_path_factory.mktemp("calm")) as swarm:
        swarm.coordinator(run_text(50))
        yield swarm


@pytest.fixture
def store(swarm: RealSwarm, stub: SwarmStub) -> Iterator[AccessStore]:
    """The access store of the coordinator that runs."""
    with closing(AccessStore(swarm.state)) as opened_store:
        yield opened_store


def refused_reasons(swarm: RealSwarm) -> list[str]:
    """The reasons that the coordinator has logged."""
    return [told["refusal"] for told in swarm.processes[0].events("coordinator.join_refused")]


def test_tokens_that_admit_nobody_are_refused_and_the_run_goes_on(
    swarm: RealSwarm, stub: SwarmStub, store: AccessStore
) -> None:
    now = time.time()
    store.invites.make(b"e" * 16, name="", now=now, expires=now)
    used, revoked = (store.invites.make(token * 16, name="", now=now, uses_max=1) for token in (b"u", b"r"))
    join(stub, SecretKey(), b"u" * 16)
    assert json.loads(swarm.command("invites", "--json").stdout)[used.number - 1]["state"] == "used_up"
    assert swarm.command("revoke", str(revoked.number)).returncode == 0
    strangers = {b"": "no_invite", b"?": "unknown_token", b"x" * 16: "unknown_token", b"x" * 10_000: "unknown_token"}
    strangers |= {b"e" * 16: "expired", b"u" * 16: "used_up", b"r" * 16: "revoked"}
    key = SecretKey()
    for token, reason in strangers.items():
        code, found, text = answer(lambda: join(stub, key, token))  # noqa: B023 - called at once
        assert (code, found) == (DENIED, reason)
        assert text
    assert refused_reasons(swarm) == ["no_invite", "unknown_token", "expired", "used_up", "revoked"]
    assert store.nodes.of(key.public.node_id) is None
    node = RawNode(swarm)
    assert node.contribute(opened(node.attend()), node.good_payload()).outcome == pb.Receipt.OUTCOME_COUNTED
    node.channel.close()


def test_a_proof_must_be_of_this_key_for_this_coordinator_and_fresh(calm: RealSwarm) -> None:
    key, other = SecretKey(), SecretKey()
    stub = SwarmStub(RawNode(calm).channel)

    def refused(fields: Any) -> tuple[grpc.StatusCode, str]:
        request = pb.JoinRequest(**({"protocol": PROTOCOL, "name": "raw"} | fields))
        return answer(lambda: stub.Join(request, timeout=10))[:2]

    greeting = hello(stub)
    right = prove(key, calm.token, greeting)
    wrong_key = right | {"public_key": other.public.data}
    no_key = right | {"public_key": b""}
    wrong_token = right | {"token": b"x" * 16}
    elsewhere = prove(key, calm.token, pb.HelloReply(public_key=other.public.data, challenge=greeting.challenge))
    damaged = right | {"signature": bytes(64)}
    for fields in (wrong_key, no_key, wrong_token, elsewhere, damaged):
        assert refused(fields) == (DENIED, "bad_signature")
    # the challenge is still good, because nobody has proved anything with it
    assert stub.Join(pb.JoinRequest(protocol=PROTOCOL, name="raw", **right), timeout=10).session
    assert refused(right) == (WAIT, "stale_challenge")  # a replay
    made_up = prove(key, calm.token, pb.HelloReply(public_key=greeting.public_key, challenge=b"c" * 40))
    assert refused(made_up) == (WAIT, "stale_challenge")
    assert {"bad_signature", "stale_challenge"} <= set(refused_reasons(calm))


def test_a_challenge_of_an_earlier_life_of_the_coordinator_is_stale(swarm: RealSwarm, stub: SwarmStub) -> None:
    key = SecretKey()
    proof = prove(key, swarm.token, hello(stub))
    swarm.processes[0].end(END_S)
    swarm.coordinator()
    with swarm.channel() as channel:
        request = pb.JoinRequest(protocol=PROTOCOL, name="raw", **proof)
        assert answer(lambda: SwarmStub(channel).Join(request, timeout=10))[:2] == (WAIT, "stale_challenge")


def test_only_the_newest_session_counts(calm: RealSwarm) -> None:
    node = RawNode(calm)
    older = node.secret
    node.join()
    with calm.channel() as channel:
        for secret in (older, "", "?", "0" * 32):
            calls = in_session(channel, secret)
            code, why, text = answer(lambda: calls.Probe(pb.ProbeRequest(), timeout=10))  # noqa: B023 - called at once
            assert code == grpc.StatusCode.NOT_FOUND
            # only who holds the secret of a session that was replaced is told so
            assert why == (REPLACED if secret == older else "")
            assert text == (SESSION_REPLACED if secret == older else NO_SESSION)


def test_a_sessions_secret_alone_cannot_leave_or_report_a_loss(calm: RealSwarm) -> None:
    node, other = RawNode(calm), RawNode(calm)
    opened(node.attend())
    session, elsewhere = statements.session_of(node.secret), statements.session_of(other.secret)
    part = pb.EvaluationPart(step=0, name="x", start=0, count=4, spread=16)
    where = (part.step, part.name, part.start, part.count, part.spread)
    leave, evaluated = statements.leave(session, 3), statements.evaluated(session, *where, 2.5)
    sign, steal = node.key.sign, SecretKey().sign

    def leaves(signature: bytes, trained_through: int | None = 3) -> Callable[[], object]:
        return lambda: node.stub.Leave(pb.LeaveRequest(trained_through=trained_through, signature=signature))

    def reports(signature: bytes, loss: float = 2.5) -> Callable[[], object]:
        return lambda: node.stub.Evaluated(pb.EvaluatedRequest(part=part, loss=loss, signature=signature))

    forged = [
        *(leaves(signature) for signature in (b"", bytes(64), steal(leave), sign(statements.leave(elsewhere, 3)))),
        *(leaves(sign(leave), trained_through) for trained_through in (4, None)),
        leaves(sign(statements.leave(session, None))),
        *(reports(signature) for signature in (b"", steal(evaluated), sign(leave))),
        reports(sign(evaluated), 2.25),
        reports(sign(statements.evaluated(elsewhere, *where, 2.5))),
    ]
    for call in forged:
        assert answer(call)[:2] == (DENIED, "bad_signature")
    code, _, text = answer(reports(sign(evaluated)))
    assert (code, text) == (grpc.StatusCode.INVALID_ARGUMENT, "no measurement is in progress")
    leaves(sign(leave))()


def test_a_ban_ends_the_session_and_the_node_is_told_why_until_it_ends(calm: RealSwarm) -> None:
    node = RawNode(calm)
    rounds, updates = node.attend(), node.stub.Updates(pb.UpdatesRequest(from_step=0))
    opened(rounds)
    node_id = node.key.public.node_id
    banned = calm.command("ban", node_id[:16], "--for", "5h", "--reason", "it shouts", "--json")
    assert json.loads(banned.stdout)["node"] == node_id
    for stream in (rounds, updates):
        code, reason, text = answer(lambda: list(stream))  # noqa: B023 - called at once
        assert (code, reason) == (WAIT, "banned")
        assert text == "this node is banned for 5 hours more: it shouts"
    assert answer(lambda: node.stub.Probe(pb.ProbeRequest(), timeout=10))[0] == grpc.StatusCode.NOT_FOUND
    assert answer(node.join)[:2] == (WAIT, "banned")
    assert node_id in {told["node_id"] for told in calm.processes[0].events("coordinator.session_ended")}
    assert calm.active() == []
    assert calm.command("unban", node_id).returncode == 0
    assert node.join().session


def test_a_node_keeps_its_place_without_its_invite(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(100_000))
    made = json.loads(swarm.command("invite", "--expires", "1h", "--name", "for ada", "--json").stdout)
    invite = parse_invite(made["invite"])
    assert invite.address == swarm.address
    folder = str(swarm.folder / "ada")
    first = swarm.start("ada", "thinwire-node", "start", made["invite"], "--rounds", "1", "--state-dir", folder)
    assert ended(first) == 0, first.text()
    assert swarm.command("revoke", str(made["number"])).returncode == 0
    again = swarm.start("ada", "thinwire-node", "start", "--rounds", "1", "--state-dir", folder)
    assert ended(again) == 0, again.text()
    (listed,) = json.loads(swarm.command("nodes", "--json").stdout)
    assert (listed["invite"], listed["address"]) == (made["number"], "127.0.0.1")
    assert "127.0.0.1" not in again.text().replace(swarm.address, "")

    stranger = swarm.start("bob", "thinwire-node", "start", made["invite"], "--state-dir", str(swarm.folder / "bob"))
    assert ended(stranger) == 1
    assert "this invite was revoked; ask the organizer for a new one" in stranger.text()
    assert "Traceback" not in stranger.text()
    elsewhere = swarm.start("ada", "thinwire-node", "start", swarm.address, "--state-dir", folder)
    assert ended(elsewhere) == 2
    assert "belongs to the coordinator at" in elsewhere.text()
