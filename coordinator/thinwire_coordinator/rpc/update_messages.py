"""Sealed updates as serialized `UpdatePart` messages. All followers receive the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from thinwire_proto.wire.parts import split
from thinwire_proto.wire.service_pb2 import UpdatePart


@dataclass(frozen=True)
class UpdateMessages:
    """A sealed row and its body as serialized messages, ready to send.

    head_step: the number of sealed steps, which the first message carries at its end. It is the only field that differs
    between followers.
    """

    messages: tuple[bytes, ...]
    head_step: int
    size: int  # of the body, in bytes

    def parts(self, head_step: int) -> Iterator[bytes]:
        """The messages with this `head_step`. Nothing is copied for a follower at the head."""
        first, *rest = self.messages
        yield first if head_step == self.head_step else first.removesuffix(_head(self.head_step)) + _head(head_step)
        yield from rest


def _head(head_step: int) -> bytes:
    return UpdatePart(head_step=head_step).SerializeToString()


def encode_update_parts(step: int, row: bytes, body: bytes, signature: bytes) -> UpdateMessages:
    """Serialize the update of a step from its canonical row. This copies the body, so run it off the event loop."""
    first, *rest = split(body)
    # protobuf reads the fields of a message in any order, so `head_step` may stand at the end
    messages = [UpdatePart(row=row, signature=signature, data=first).SerializeToString() + _head(step + 1)]
    messages += [UpdatePart(data=data).SerializeToString() for data in rest]
    return UpdateMessages(tuple(messages), step + 1, len(body))
