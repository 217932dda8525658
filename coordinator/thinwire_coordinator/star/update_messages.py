"""Sealed updates as serialized `UpdatePart` messages. All followers receive the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from thinwire_proto.wire.parts import split_for_download
from thinwire_proto.wire.service_pb2 import UpdatePart


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
    return UpdatePart(head_step=head_step).SerializeToString()


def encode_update_parts(step: int, row: bytes, body: bytes, signature: bytes) -> UpdateMessages:
    """Serialize the update of a step from its canonical row. This copies the body, so run it off the event loop."""
    first, *rest = split_for_download(body)
    # protobuf reads the fields of a message in any order, so `head_step` may stand at the end
    begins = UpdatePart(row=row, signature=signature, data=first).SerializeToString() + _head(step + 1)
    others = tuple(UpdatePart(data=data).SerializeToString() for data in rest)
    return UpdateMessages(begins, others, step + 1, len(body))
