"""Converts between a report and its message on the wire. Both ends make the signed bytes of a report here."""

from __future__ import annotations

from dataclasses import asdict

from thinwire_proto.gossip.reports import Report, sketch_hash
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb


def report_of(request: pb.BeatRequest) -> Report:
    """The report in a message. Raises PayloadError if its sketch has the wrong size."""
    return Report(
        topology=request.topology,
        iteration=request.iteration,
        head=request.head,
        samples=request.samples,
        loss=request.loss,
        compute_ms=request.compute_ms,
        trained_through=request.trained_through if request.HasField("trained_through") else None,
        sketch_hash=sketch_hash(request.sketch),
        sketch_iteration=request.sketch_iteration,
        missed=tuple(request.missed),
        step_norm=request.step_norm,
    )


def request_of(report: Report) -> pb.BeatRequest:
    """The message of a report, without its sketch, and not signed yet."""
    fields = asdict(report)
    del fields["sketch_hash"]
    return pb.BeatRequest(**fields)


def sign_report(request: pb.BeatRequest, number: int, key: SecretKey, session: bytes) -> None:
    """Number and sign a report. number: of the reports of this session, from 1. session: 32 bytes, as `session_of`."""
    request.number = number
    request.signature = key.sign(statements.beat(session, number, report_of(request).canonical()))
