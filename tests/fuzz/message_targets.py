"""Targets: every protobuf message, as the side that receives it converts it."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from functools import cache
from typing import Any

from google.protobuf.message import DecodeError, Message
from rich.console import Console

from fuzz.messages import damage_of
from fuzz.right_requests import HASH, PART, right_requests
from fuzz.target import Target
from support.small import random_replica, shapes_contract, small_contract
from thinwire_coordinator.cli.status import table
from thinwire_coordinator.hall.leases import Leases
from thinwire_coordinator.hall.rpc import messages as coordinator
from thinwire_coordinator.star import messages as star_messages
from thinwire_coordinator.star.round.admission import RoundFacts, check_header
from thinwire_node.exchange.coordinator import messages as node
from thinwire_node.exchange.coordinator.clock import CoordinatorClock, Probe
from thinwire_node.exchange.port import AnnouncedRound
from thinwire_node.training.lease import Lease
from thinwire_proto.clean_text import NAME_BYTES_MAX, clean_name, clean_text
from thinwire_proto.errors import ContractError, RemoteError
from thinwire_proto.exact.replica import Replica
from thinwire_proto.identity.keys import PublicKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.negotiation import PROTOCOL, check_chosen, choose
from thinwire_proto.wire.rows import Counted, Row, parse_row

REFUSALS = (RemoteError, DecodeError)
ROW = Row(3, 4, 1, 2**64 - 1, 17, HASH, 99, (Counted("n" * 32, HASH, 8, 8),), HASH, extras={"a": [1, "b"]})
NODE_ID = "0123456789abcdef" * 2
CONTRACT = small_contract()
"""Of the run that announcements and updates belong to."""


def message_targets() -> list[Target]:
    """Requests as the coordinator reads them, and replies as a node reads them."""
    proof = {"public_key": HASH, "token": HASH[:16], "challenge": HASH, "signature": HASH * 2}
    right = right_requests(b"", proof)
    return [
        _target("join request", right["Join"], _join),
        _target("contribution part", right["Contribute"], _contribute),
        _target("evaluated request", right["Evaluated"], _evaluated),
        _target("leave request", right["Leave"], _leave),
        _target("blob request", right["Blob"], lambda request: request.hash.hex()),
        _target("join reply", _join_reply(), _admission),
        _target("examine reply", pb.ExamineReply(contract=_join_reply().contract, received_us=5), node.contract_in),
        _target("announcement", _announcement(), _announced),
        _target("receipt", _receipt(), _settled),
        _target("probe reply", pb.ProbeReply(term=1, received_us=5, answered_us=6), _probed),
        _target(
            "update part", pb.UpdatePart(row=ROW.canonical(), data=b"x", head_step=1, signature=HASH * 2), _updated
        ),
        _target("status reply", _status_reply(), _shown),
    ]


def _target(name: str, valid: Message, use: Callable[[Any], object]) -> Target:
    kind = type(valid)

    def read(data: bytes) -> object:
        message = kind()
        message.ParseFromString(data)
        return use(message)

    return Target(name, read, [valid.SerializeToString(), b""], damage_of(kind), refusals=REFUSALS)


@cache
def small_replica() -> Replica:
    """A replica of a few thousand parameters."""
    return random_replica(shapes_contract())


def _join(request: pb.JoinRequest) -> None:
    choose(request.protocol, request.protocol_oldest)
    node = PublicKey(request.public_key).node_id
    name = clean_name(request.name)
    assert len(name.encode()) <= NAME_BYTES_MAX, "a long name"
    assert name.isprintable(), "a name with control characters"
    assert clean_name(name) == name, "a name that changes when it is cleaned again"
    offered = coordinator.offered_momentum(request)
    leases = Leases()
    leases.grant(node, 8, 0)
    leases.resume(node, offered.trained_through if offered else None)
    coordinator.replica_step(request)


def _contribute(part: pb.ContributionPart) -> None:
    claim = star_messages.claim(part.header, "session")
    facts = RoundFacts(2, 3, 1, 8, contributed=False, payload_bytes_max=1000)
    leases = Leases()
    leases.grant(NODE_ID, 8, 0)
    for _ in range(2):
        check_header(claim, 1, 3, facts)
        leases.reported_samples(NODE_ID, claim.trained_through)
        leases.report(NODE_ID, claim.trained_through)
    assert Leases.from_plain(leases.plain()).plain() == leases.plain(), "leases"


def _evaluated(request: pb.EvaluatedRequest) -> None:
    coordinator.part(request.part)
    coordinator.evaluated_statement(request, HASH.hex())


def _leave(request: pb.LeaveRequest) -> None:
    coordinator.leave_statement(request, HASH.hex())
    leases = Leases()
    leases.grant(NODE_ID, 8, 0)
    leases.resume(NODE_ID, coordinator.trained_through(request))
    leases.give_back(NODE_ID)
    leases.packed()


def _join_reply() -> pb.JoinReply:
    return pb.JoinReply(contract=small_replica().contract.written, session="s" * 32, step=3, protocol=PROTOCOL)


def _admission(reply: pb.JoinReply) -> None:
    check_chosen(reply.protocol)
    secret = node.session_secret(reply)
    assert secret.isascii(), "a secret that gRPC refuses with an error of its own"
    assert secret.isprintable(), "a secret that gRPC refuses with an error of its own"
    admission = node.admission(reply)
    assert admission.step <= admission.contract.schedule.steps, "a step"
    assert clean_text(admission.drop_momentum) == admission.drop_momentum, "a text"
    if admission.contract.hash != small_replica().contract.hash:
        raise ContractError("another contract")


def _announcement() -> pb.Announcement:
    runs = [pb.SampleRange(start=0, count=8), pb.SampleRange(start=20, count=4)]
    return pb.Announcement(
        state=pb.Announcement.STATE_ROUND,
        term=1,
        round=2,
        step=3,
        time_left_ms=5000,
        k=8,
        nonces=[1, 2],
        lease=runs,
        text="text",
        clock_us=10**9,
        evaluate=[PART],
        upcoming=runs,
        evaluating=3,
    )


def _announced(message: pb.Announcement) -> None:
    found = node.announcement(message, CONTRACT)
    assert found.step <= CONTRACT.schedule.steps, "a step"
    if not isinstance(found, AnnouncedRound):
        return
    assert math.isfinite(found.deadline), "a deadline"
    assert 1 <= found.k <= CONTRACT.demo.k, "k"
    assert 1 <= len(found.nonces) <= node.NONCES_MAX, "nonces"
    assert sum(map(len, found.lease)) <= node.POSITIONS_MAX, "a lease"
    assert sum(map(len, found.upcoming)) <= node.POSITIONS_MAX, "an upcoming lease"
    assert all(part.name.isprintable() and len(part.name.encode()) <= 256 for part in found.evaluate), "a name"
    lease = Lease(trained_through=3)
    lease.renew(found.lease)
    assert lease.left >= 0, "a lease"
    assert sum(len(run) for run in lease.head(8)) <= 8, "more than was asked for"
    if lease.left:
        assert 1 <= len(lease.take(8)) <= 8, "more than was asked for"


def _receipt() -> pb.Receipt:
    outcome, reason = pb.Receipt.OUTCOME_NOT_COUNTED, pb.Receipt.REASON_LATE
    return pb.Receipt(outcome=outcome, reason=reason, text="no", step=4, arrived_us=9)


def _settled(receipt: pb.Receipt) -> None:
    found = node.outcome(receipt)
    assert found.text.isprintable(), "a text"
    assert found.arrived is None or math.isfinite(found.arrived), "a time"


def _updated(part: pb.UpdatePart) -> None:
    parse_row(part.row)
    node.check_number("steps", part.head_step, CONTRACT.schedule.steps)


def _probed(reply: pb.ProbeReply) -> None:
    clock = CoordinatorClock()
    for sent in (1.0, 2.0):
        term, received, answered = node.probe_times(reply)
        clock.add(Probe(sent, received, answered, sent + 0.5), term)
    if clock:
        assert math.isfinite(clock.offset(3.0)), "an offset"
        assert clock.error(3.0) >= 0, "an error"


def _status_reply() -> pb.StatusReply:
    return pb.StatusReply(
        state="training",
        step=3,
        steps=9,
        loss_newest=2.5,
        loss_newest_step=3,
        loss_training=2.5,
        nodes=[pb.NodeStatus(node_id=NODE_ID, name="anna", active=True, counted=3, replica_equal=True)],
        held_out=[pb.HeldOutLoss(name="held_out", step=3, loss=2.5, bits_per_byte=1.5)],
        whole=pb.WholeRun(tokens=9, since_step=1, nodes=[pb.NodeShare(node_id=NODE_ID, name="anna", tokens=9)]),
    )


def _shown(reply: pb.StatusReply) -> None:
    with tempfile.TemporaryFile("w+") as file:
        Console(file=file, width=120, force_terminal=False).print(table(reply))
        file.seek(0)
        shown = file.read()
    assert "\x1b" not in shown, "an escape sequence"
    assert "\r" not in shown.replace("\r\n", ""), "a carriage return"
