"""Targets: a node's report as the coordinator reads it, and the coordinator's answer as a node takes it."""

from __future__ import annotations

import math
from contextlib import suppress

import torch
from google.protobuf.message import DecodeError

from fuzz.gossip_targets import SMALL
from fuzz.message_targets import CONTRACT
from fuzz.messages import damage_of
from fuzz.target import Target
from thinwire_coordinator.gossip.judging import address_of
from thinwire_node.gossip.exchange import amended, beat_answer
from thinwire_node.gossip.port import BeatAnswer
from thinwire_proto.contract.amendment import AMENDMENTS_MAX
from thinwire_proto.errors import ContractError, RemoteError
from thinwire_proto.gossip.consensus import SKETCH_BYTES
from thinwire_proto.gossip.lines_wire import lines_of, report_of_lines
from thinwire_proto.gossip.member import Member
from thinwire_proto.gossip.member_state import MemberSettings
from thinwire_proto.gossip.report_wire import report_of, sign_report
from thinwire_proto.gossip.reports import EDGES_MAX, Report, SeenEdge, SeenLines
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb

KEY = SecretKey(bytes(range(32)))
REFUSALS = (RemoteError, DecodeError)


def beat_targets() -> list[Target]:
    return [_request_target(), _reply_target()]


def _request_target() -> Target:
    valid = pb.BeatRequest(
        topology=1,
        iteration=40,
        head=bytes(32),
        samples=8,
        loss=2.5,
        compute_ms=900,
        trained_through=17,
        sketch=bytes(SKETCH_BYTES),
        sketch_iteration=32,
        missed=[3, 5],
        listens_at="[2001:db8::1]:7700",
        step_norm=0.01,
        lines=report_of_lines(SeenLines(5, 6, (SeenEdge(1, "direct", 39), SeenEdge(2, "relay", None)))),
    )
    sign_report(valid, 1, KEY, bytes(32))

    def read(data: bytes) -> tuple[Report, SeenLines]:
        request = pb.BeatRequest.FromString(data)
        address_of(request.listens_at, "2001:db8::2")
        return report_of(request), lines_of(request.lines)

    def check(found: object) -> None:
        assert isinstance(found, tuple)
        report, lines = found
        if not report.problem():
            assert report.canonical()
        assert len(lines.edges) <= EDGES_MAX, "edges"
        assert lines_of(report_of_lines(lines)) == lines, "other lines after the wire"

    own = pb.BeatRequest(listens_at=":7700").SerializeToString()
    return Target("beat request", read, [valid.SerializeToString(), own], damage_of(pb.BeatRequest), check, REFUSALS)


def _reply_target() -> Target:
    """A node that trains takes the answer, and one that has just joined begins with it."""
    turns = [pb.Turns(turns=[pb.TurnOfCycle(member=peer, weight=0.5)]) for peer in (1, 2)]
    peers = [pb.PeerAddress(member=peer, public_key=KEY.public.data, address="a:1", since=1) for peer in (1, 2)]
    first = pb.Assignment(topology=1, start=0, member=0, cycle=turns, peers=peers)
    later = pb.Assignment(topology=2, start=1, member=0, cycle=turns[:1], peers=peers[:1])
    lease = [pb.SampleRange(start=0, count=8)]
    part = pb.EvaluationPart(step=32, name="held_out", start=8, count=8, spread=64)
    state = pb.BeatReply.STATE_TRAINING
    valid = [
        pb.BeatReply(state=state, text="text", next_ms=10_000, lease=lease, assignment=first),
        pb.BeatReply(state=state, next_ms=10_000, assignment=later, measure_at=32, evaluate=[part]),
    ]

    def read(data: bytes) -> BeatAnswer:
        reply = pb.BeatReply.FromString(data)
        with suppress(ContractError):
            assert len(amended(reply, CONTRACT).amendments) <= AMENDMENTS_MAX, "amendments"
        answer = beat_answer(reply)
        assert math.isfinite(answer.next_s), "a time"
        assert answer.text.isprintable(), "a text"
        assert all(len(place.key.data) == 32 for place in answer.places.values()), "a key"
        for joined in (_joined(None), _joined(first)):
            if answer.assignment is not None:
                joined.assign(answer.assignment)
            if joined.iteration < 0 and joined.topology and not joined.waits_to_adopt:
                joined.begin()
        return answer

    written = [reply.SerializeToString() for reply in valid]
    return Target("beat reply", read, written, damage_of(pb.BeatReply), refusals=REFUSALS)


def _joined(assignment: pb.Assignment | None) -> Member:
    """A member; with an assignment, in its first iteration."""
    member = Member(SMALL, MemberSettings("sign", 1.0, 0, 5.0), torch.zeros(SMALL.parameters))
    if assignment is not None:
        given = beat_answer(pb.BeatReply(state=pb.BeatReply.STATE_TRAINING, assignment=assignment)).assignment
        assert given is not None
        member.assign(given)
        member.begin()
    return member
