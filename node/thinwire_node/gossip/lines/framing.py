"""Messages of one line as parcels: split, signed, joined and checked. Parcels in, messages out.

A message is taken only if its sender has signed it for this node and this contract. So nobody on the way can alter it.
"""

from __future__ import annotations

from collections.abc import Iterator

from thinwire_proto.errors import PayloadError
from thinwire_proto.gossip.message import Message
from thinwire_proto.gossip.peer_wire import check_header, header_of, message_of, statement_of
from thinwire_proto.identity.keys import PublicKey, SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.parts import Assembly, split_for_upload


class Framing:
    """One line. key: this node's. peer: the other end's. bytes_max: of a body, see `peer_wire.body_bytes_max`."""

    def __init__(self, key: SecretKey, peer: PublicKey, contract_hash: bytes, bytes_max: int) -> None:
        self._key = key
        self._peer = peer
        self._contract_hash = contract_hash
        self._bytes_max = bytes_max
        self._header: pb.PeerHeader | None = None
        self._assembly: Assembly | None = None

    def parcels(self, message: Message) -> Iterator[pb.Parcel]:
        """The parcels of a message, in order."""
        header: pb.PeerHeader | None = header_of(message)
        assert header is not None
        own = self._key.public.node_id
        header.signature = self._key.sign(statement_of(self._contract_hash, own, self._peer.node_id, message))
        for data in split_for_upload(message.body):
            yield pb.Parcel(header=header, data=data)
            header = None

    def read(self, parcel: pb.Parcel) -> Message | None:
        """Take a parcel. Returns the message that it completes.

        A message that begins ends an incomplete one, and what belongs to none is passed over: a relay drops parcels
        of a line that it cannot serve. Raises PayloadError for what the peer cannot have sent."""
        if parcel.HasField("header"):
            self.forget()
            check_header(parcel.header, self._bytes_max)
            self._header = parcel.header
            self._assembly = Assembly(parcel.header.body_bytes, self._bytes_max, "message of a peer")
        if self._assembly is None or self._header is None:
            return None
        if not parcel.HasField("header") and not parcel.data:
            return None  # a confirmation between two parts
        self._assembly.add(parcel.data)
        if not self._assembly.complete:
            return None
        header, message = self._header, message_of(self._header, self._assembly.whole())
        self.forget()
        statement = statement_of(self._contract_hash, self._peer.node_id, self._key.public.node_id, message)
        if not self._peer.verifies(header.signature, statement):
            raise PayloadError(
                f"message {message.sequence} is not signed by {self._peer.node_id[:8]} for this node and contract"
            )
        return message

    def forget(self) -> None:
        """Drop an incomplete message."""
        self._header = self._assembly = None
