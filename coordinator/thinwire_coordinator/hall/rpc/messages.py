"""Converts between wire messages and the coordinator's own types. Below this package, nothing uses protobuf."""

from __future__ import annotations

from thinwire_coordinator.hall.counts import NodeCounts
from thinwire_coordinator.hall.ledger.ledger import Recorded
from thinwire_coordinator.hall.measurement import Part
from thinwire_coordinator.hall.members import Member
from thinwire_coordinator.hall.run import JoinDecision, OfferedMomentum
from thinwire_coordinator.hall.view import RunView, WholeRun
from thinwire_proto.clean_text import clean_name
from thinwire_proto.contract import Contract, differences, parse_contract
from thinwire_proto.errors import ContractError
from thinwire_proto.identity import statements
from thinwire_proto.identity.contribution_certificate import ContributionCertificate
from thinwire_proto.identity.terms import ProvenTerm
from thinwire_proto.wire import service_pb2 as pb


def offered_momentum(request: pb.JoinRequest) -> OfferedMomentum | None:
    if not request.HasField("momentum"):
        return None
    offered = request.momentum
    mark = offered.trained_through if offered.HasField("trained_through") else None
    return OfferedMomentum(mark, tuple(offered.sent_since))


def replica_step(request: pb.JoinRequest) -> int | None:
    return request.replica_step if request.HasField("replica_step") else None


def join_reply(
    decision: JoinDecision, contract: Contract, secret: str, protocol: int, proven: ProvenTerm
) -> pb.JoinReply:
    return pb.JoinReply(
        contract=contract.written,
        amendments=[amendment.written for amendment in contract.amendments],
        session=secret,
        step=decision.step,
        take_snapshot=decision.take_snapshot,
        drop_momentum=decision.drop_momentum,
        protocol=protocol,
        term=proven.number,
        term_signature=proven.signature,
        rewound=decision.rewound,
    )


def trained_through(message: pb.LeaveRequest | pb.ContributionHeader) -> int | None:
    """The last position that the node has trained on; None if it names none."""
    return message.trained_through if message.HasField("trained_through") else None


def leave_statement(request: pb.LeaveRequest, session: str) -> bytes:
    """The statement that a node signs to leave. session: as the member has it, in hexadecimal."""
    return statements.leave(bytes.fromhex(session), trained_through(request))


def evaluated_statement(request: pb.EvaluatedRequest, session: str) -> bytes:
    """The statement that a node signs with a measured loss. session: as for `leave_statement`."""
    done = request.part
    where = (done.step, done.name, done.start, done.count, done.spread)
    return statements.evaluated(bytes.fromhex(session), *where, request.loss)


def evaluation_part(part: Part) -> pb.EvaluationPart:
    return pb.EvaluationPart(step=part.step, name=part.name, spread=part.spread, start=part.start, count=part.count)


def part(message: pb.EvaluationPart) -> Part:
    return Part(message.step, message.name, message.spread, message.start, message.count)


def status(
    view: RunView,
    recorded: Recorded,
    whole: WholeRun | None,
    step: int,
    fingerprint: int | None,
    *,
    in_full: bool = False,
) -> pb.StatusReply:
    """The state of the swarm.

    whole: None until it is known. step: the step of the fingerprint, or the newest one. in_full: for the organizer.
    """
    counts, name = view.counts, next((found.name for found in view.held_out_sets), "")
    first, newest = recorded.first.get(name), recorded.newest.get(name)
    return pb.StatusReply(
        state=view.condition,
        term=view.term.number,
        round=view.round_number,
        step=step,
        steps=view.steps,
        rounds_void=recorded.rounds_void,
        loss_first=first[1] if first else None,
        loss_newest=newest[1] if newest else None,
        loss_newest_step=newest[0] if newest else 0,
        loss_training=view.loss,
        tokens=counts.tokens,
        measured_step=view.measured_step,
        bytes_up=counts.bytes_up,
        bytes_down=counts.bytes_down,
        bytes_fetched=counts.bytes_fetched,
        fingerprint=fingerprint,
        fingerprints_compared=counts.fingerprints_compared,
        fingerprints_different=counts.fingerprints_different,
        parameters=view.layout.parameters,
        held_out=_held_out(view, recorded),
        nodes_active=view.active,
        nodes_in_full=in_full,
        nodes=[_node_status(member, counts.of(member.node_id), in_full) for member in view.members.values()],
        whole=_whole(whole) if whole is not None else None,
    )


def certificate(view: RunView, run: WholeRun, rows: int, row_hash: bytes, at: float) -> ContributionCertificate:
    """The certificate of the node that was asked for, of the rows up to this one; unsigned."""
    share, contract = run.asked, view.contract.hash.hex()
    place = share.node, share.counted, share.tokens, run.tokens, rows
    return ContributionCertificate(contract, *place, row_hash.hex(), int(at))


def _whole(run: WholeRun) -> pb.WholeRun:
    shares = [
        pb.NodeShare(node_id=share.node, name=clean_name(share.name), counted=share.counted, tokens=share.tokens)
        for share in run.shares
    ]
    return pb.WholeRun(tokens=run.tokens, since_step=run.since_step, nodes_counted=run.nodes, nodes=shares)


def _held_out(view: RunView, recorded: Recorded) -> list[pb.HeldOutLoss]:
    """The newest loss of each held-out set that was measured."""
    context, losses = view.contract.model.context, []
    for found in view.held_out_sets:
        if found.name in recorded.newest:
            step, loss = recorded.newest[found.name]
            bits = loss * (found.bits_per_nat(context) or 0.0)
            losses.append(pb.HeldOutLoss(name=found.name, step=step, loss=loss, bits_per_byte=bits, unit=found.unit))
    return losses


def _node_status(member: Member, counts: NodeCounts, in_full: bool) -> pb.NodeStatus:
    node = pb.NodeStatus(
        node_id=member.node_id,
        name=member.name,
        counted=counts.counted,
        tokens=counts.tokens,
        iteration=counts.iteration,
        loss=counts.loss,
    )
    if not in_full:
        return node  # what the ledger tells everybody
    more = pb.NodeStatus(
        active=member.active,
        not_counted=counts.not_counted,
        dropped=counts.dropped,
        compute_s=counts.compute_s,
        lost=counts.lost,
        bytes_up=counts.bytes_up,
        bytes_down=counts.bytes_down,
        bytes_fetched=counts.bytes_fetched,
        replica_equal=counts.replica_equal,
        relay_up=counts.relay_up,
        relay_down=counts.relay_down,
        direct_up=counts.direct_up,
        direct_down=counts.direct_down,
    )
    node.MergeFrom(more)
    return node


COMPARED_FACTOR, COMPARED_MORE = 4, 1 << 16
"""A contract with more than so many times the bytes of the run's own, and so many more, is not read: comparing takes
time in proportion to them."""


def other_run(ours: Contract, theirs: bytes) -> str:
    """How the contract of a joining node differs from the run's, and what to do."""
    if len(theirs) > COMPARED_FACTOR * len(ours.written) + COMPARED_MORE:
        found = [f"{len(ours.written)} bytes here, {len(theirs)} there"]
    else:
        try:
            parsed = parse_contract(theirs)
        except ContractError as error:
            return str(error)
        # two runs may have contracts with equal fields
        found = differences(ours, parsed) or [f"the hash: {ours.hash.hex()[:16]} here, {parsed.hash.hex()[:16]} there"]
    return (
        f"the contracts differ ('here' is the coordinator): {'; '.join(found)}; "
        "start the node with another --state-dir to take part in this run"
    )
