"""Converts between wire messages and the types of a star run."""

from __future__ import annotations

from thinwire_coordinator.hall.rpc.messages import evaluation_part, trained_through
from thinwire_coordinator.star.round.admission import ContributionClaim
from thinwire_coordinator.star.round.announcements import Announcement, RoundAnnouncement
from thinwire_coordinator.star.round.receipts import Receipt
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.reason_numbers import NUMBERS, outcome_of


def announcement(told: Announcement) -> pb.Announcement:
    if not isinstance(told, RoundAnnouncement):
        state = pb.Announcement.STATE_WAITING
        if told.complete:
            state = pb.Announcement.STATE_COMPLETE
        elif told.paused:
            state = pb.Announcement.STATE_PAUSED
        resumes_in_s = None if told.resumes_in_s is None else round(told.resumes_in_s)
        return pb.Announcement(state=state, term=told.term, step=told.step, text=told.text, resumes_in_s=resumes_in_s)
    return pb.Announcement(
        state=pb.Announcement.STATE_ROUND,
        term=told.term,
        round=told.number,
        step=told.step,
        time_left_ms=max(0, round((told.deadline - told.now) * 1000)),
        clock_us=round(told.now * 1e6),
        k=told.k,
        nonces=told.nonces,
        lease=[pb.SampleRange(start=run.start, count=run.count) for run in told.lease],
        upcoming=[pb.SampleRange(start=run.start, count=run.count) for run in told.upcoming],
        evaluate=[evaluation_part(part) for part in told.evaluate],
        evaluating=told.evaluating,
    )


def claim(header: pb.ContributionHeader, session: str) -> ContributionClaim:
    return ContributionClaim(
        session=session,
        term=header.term,
        round=header.round,
        step=header.step,
        base_step=header.base_step,
        fingerprint=header.fingerprint,
        samples=header.samples,
        trained_through=trained_through(header),
        payload_bytes=header.payload_bytes,
        loss=header.loss,
        dropped=header.dropped,
        skipped=header.skipped,
        compute_ms=header.compute_ms,
        signature=header.signature,
    )


def receipt(given: Receipt) -> pb.Receipt:
    return pb.Receipt(
        outcome=outcome_of(given.reason),
        reason=NUMBERS[given.reason],
        text=given.text,
        step=given.step,
        arrived_us=given.arrived_us,
    )
