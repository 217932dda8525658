"""Converts between wire messages and the types of a star run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from thinwire_coordinator.hall.rpc.messages import evaluation_part, trained_through
from thinwire_coordinator.star.round.admission import ContributionClaim
from thinwire_coordinator.star.round.announcements import Announcement, Receipt, RoundAnnouncement
from thinwire_proto.contract.amendment import Amendment
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.parts import split_for_download
from thinwire_proto.wire.reason_numbers import NUMBERS, outcome_of


def announcement(told: Announcement, amendments: Sequence[Amendment] = ()) -> pb.Announcement:
    """amendments: those that the node has not been told on this stream."""
    written = [amendment.written for amendment in amendments]
    if not isinstance(told, RoundAnnouncement):
        state = pb.Announcement.STATE_WAITING
        if told.complete:
            state = pb.Announcement.STATE_COMPLETE
        elif told.paused:
            state = pb.Announcement.STATE_PAUSED
        resumes_in_s = None if told.resumes_in_s is None else round(told.resumes_in_s)
        return pb.Announcement(
            state=state,
            term=told.term,
            step=told.step,
            text=told.text,
            resumes_in_s=resumes_in_s,
            amendments=written,
        )
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
        amendments=written,
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


@dataclass
class UpdateMessages:
    """A sealed row and its body as serialized messages, ready to send.

    first: the message that begins the update, and carries `head_step` at its end. head_step: the number of sealed steps
    when it was last sent. It is the only field that depends on when a follower asks. size: of the body, in bytes.
    """

    first: bytes
    rest: tuple[bytes, ...]
    head_step: int
    size: int

    def parts(self, head_step: int) -> Iterator[bytes]:
        """The messages with this `head_step`. Nothing is copied, unless the head has moved since they were last sent.

        The newly made first message replaces the old one, so that all other followers share it, whether they are at the
        head or behind it, and so that an update never takes more memory than once.
        """
        if head_step != self.head_step:
            kept = len(self.first) - len(_head(self.head_step))
            self.first = b"".join((memoryview(self.first)[:kept], _head(head_step)))
            self.head_step = head_step
        yield self.first
        yield from self.rest


def _head(head_step: int) -> bytes:
    return pb.UpdatePart(head_step=head_step).SerializeToString()


def encode_update_parts(step: int, row: bytes, body: bytes, signature: bytes) -> UpdateMessages:
    """Serialize the update of a step from its canonical row. This copies the body, so run it off the event loop."""
    first, *rest = split_for_download(body)
    # protobuf reads the fields of a message in any order, so `head_step` may stand at the end
    begins = pb.UpdatePart(row=row, signature=signature, data=first).SerializeToString() + _head(step + 1)
    others = tuple(pb.UpdatePart(data=data).SerializeToString() for data in rest)
    return UpdateMessages(begins, others, step + 1, len(body))
