"""Makes inputs for a coordinator: one call each, from right calls of joined sessions."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from random import Random
from typing import Any

from google.protobuf.message import DecodeError

from fuzz import corpus
from fuzz.messages import damage_field
from fuzz.mutations import damage_bytes
from fuzz.payload_mutations import damage_payload
from fuzz.wire.calls import REQUESTS, SERVICE, Call, damaged_call, damaged_message, headers_of, prefixed, right
from fuzz.wire.connection import Answer
from fuzz.wire.frames import block
from fuzz.wire.session import HTTPS, Session
from thinwire_coordinator.hall.rpc import messages
from thinwire_proto.exact.replica import Replica
from thinwire_proto.identity import statements
from thinwire_proto.wire import service_pb2 as pb

LIVE_MAX = 200
LARGE = frozenset({"Corpus", "Snapshot"})
"""Calls whose answer is long. They are made less often, since the bytes would be most of the work."""
RARE = 0.1
SIGNED = 0.7
SIGNS: dict[str, tuple[Any, Any]] = {
    "Leave": (pb.LeaveRequest, messages.leave_statement),
    "Evaluated": (pb.EvaluatedRequest, messages.evaluated_statement),
}
"""Calls beside Contribute that a node signs: the request, and its statement."""
WRONG_SECRETS = ("", "0" * 32, "x", "\xff" * 40, "a" * 4000)


@dataclass
class Inputs:
    """rng: decides everything. replica: the parameters that contributions are computed on. busiest: the part of all
    calls in sessions that the first session makes, beside its share."""

    rng: Random
    sessions: list[Session]
    replica: Replica
    scheme: bytes = HTTPS
    busiest: float = 0.0
    live: dict[str, list[bytes]] = field(default_factory=dict)
    _fingerprints: dict[int, int] = field(default_factory=dict)
    _seen: set[tuple[str, int | None, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.live = {method: [self._right(method), *corpus.kept(f"wire {method}")] for method in REQUESTS}

    def make(self) -> tuple[Call, str, bytes]:
        """An input, and the method and the message that it was made of."""
        choice = self.rng.random()
        if choice < 0.35:
            return self._contribution()
        method = self._method()
        message = self.rng.choice(self.live[method])
        if choice < 0.85:
            message, secret = damaged_message(self.rng, method, message), self._secret()
            if self.rng.random() < SIGNED:
                message = self._signed(method, message, secret)
            return right(method, message, secret, self.scheme), method, message
        call = right(method, message, "", self.scheme)
        return damaged_call(self.rng, call, SERVICE + method, self._secret(), self.scheme), "", message

    def learn(self, method: str, message: bytes, answer: Answer) -> bool:
        """Keep a message whose answer is of a new kind. Returns whether it was."""
        kind = (method, answer.status, re.sub(r"[0-9a-f]+", "#", answer.text)[:80])
        if not method or kind in self._seen:
            return False
        self._seen.add(kind)
        live = self.live[method]
        if len(live) < LIVE_MAX:
            live.append(message)
        else:
            live[self.rng.randrange(len(live))] = message
        return True

    def damaged_join(self, request: pb.JoinRequest) -> bytes:
        """A join with a right proof, and other things about the node; or with a damaged proof."""
        for _ in range(self.rng.choice((1, 1, 2))):
            before = (request.public_key, request.challenge, request.signature, request.token)
            damage_field(self.rng, request)
            if self.rng.random() < 0.7:
                request.public_key, request.challenge, request.signature, request.token = before
        if self.rng.random() < 0.2:
            contract = self.sessions[0].contract
            assert contract is not None
            request.contract = damage_bytes(self.rng, contract.written, [contract.written])
        return request.SerializeToString()

    def _method(self) -> str:
        while True:
            method = self.rng.choice(list(REQUESTS))
            if method not in LARGE or self.rng.random() < RARE:
                return method

    def _secret(self) -> str:
        if self.rng.random() < 0.08:
            return self.rng.choice(WRONG_SECRETS)
        return self._session().secret

    def _session(self) -> Session:
        return self.sessions[0] if self.rng.random() < self.busiest else self.rng.choice(self.sessions)

    def _signed(self, method: str, message: bytes, secret: str) -> bytes:
        """A damaged message, signed if its call has a signature, so that it reaches the code behind the check."""
        session = next((one for one in self.sessions if one.secret == secret), None)
        if session is None or method not in SIGNS:
            return message
        request = SIGNS[method][0]()
        try:
            request.ParseFromString(message)
        except DecodeError:
            return message
        name = statements.session_of(secret).hex()
        request.signature = session.key.sign(SIGNS[method][1](request, name))
        return bytes(request.SerializeToString())

    def _right(self, method: str) -> bytes:
        session = self.sessions[0]
        if method == "Contribute":
            header = session.header(self.replica, self._fingerprints)
            return pb.ContributionPart(header=header, data=b"payload").SerializeToString()
        part = pb.EvaluationPart(step=0, name="held_out", start=0, count=4, spread=16)
        made = {
            "Hello": pb.HelloRequest(nonce=bytes(32)),
            "Join": pb.JoinRequest(protocol=4, name="x", public_key=bytes(32), momentum=pb.KeptMomentum()),
            "AskReceipt": pb.ReceiptRequest(contribution=hashlib.sha256(b"").digest()),
            "Evaluated": pb.EvaluatedRequest(part=part, loss=2.5),
            "Blob": pb.BlobRequest(hash=bytes(32), offset=1),
            "Snapshot": pb.SnapshotRequest(step=0, offset=7),
            "Leave": pb.LeaveRequest(trained_through=3),
            "Status": pb.StatusRequest(fingerprint=True),
        }.get(method, REQUESTS[method]())
        return made.SerializeToString()

    def _contribution(self) -> tuple[Call, str, bytes]:
        """A contribution of a session for its open round: header, payload, parts or their order are damaged."""
        rng, session = self.rng, self._session()
        header, payload = session.header(self.replica, self._fingerprints), session.payload(rng)
        kind = rng.randrange(10)
        if kind <= 4:
            payload = damage_payload(rng, payload, [payload])
        session.sign(header, payload)
        if kind in (4, 5):
            damage_field(rng, header)
            if rng.random() < 0.5:
                session.sign(header, payload)
        elif kind == 6:
            payload = rng.choice((payload + b"\0", payload[:-1], b"", payload[::-1]))
        elif kind == 7:
            header.signature = rng.choice((b"", header.signature[:-1], bytes(64), rng.randbytes(64)))
        parts = self._parts(header, payload, kind)
        call = Call(
            "Contribute",
            block(headers_of(SERVICE + "Contribute", session.secret, self.scheme)),
            [prefixed(part.SerializeToString()) for part in parts],
            ends=kind != 8 or rng.random() < 0.5,
            long=kind == 8,
        )
        return call, "Contribute", parts[0].SerializeToString() if parts else b""

    def _parts(self, header: pb.ContributionHeader, payload: bytes, kind: int) -> list[pb.ContributionPart]:
        """The messages of a contribution; those of the kinds 8 and 9 in a bad order."""
        rng = self.rng
        cuts = sorted(rng.randrange(len(payload) + 1) for _ in range(rng.choice((0, 0, 1, 3))))
        pieces = [payload[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
        parts = [pb.ContributionPart(data=piece) for piece in pieces]
        parts[0].header.CopyFrom(header)
        if kind == 8:
            parts.append(pb.ContributionPart(header=header, data=rng.choice((b"", payload[:9]))))
        if kind == 9:
            rng.shuffle(parts)
            parts[rng.randrange(len(parts)) :] = rng.choice(([], parts, [pb.ContributionPart()] * 50))
        return parts
