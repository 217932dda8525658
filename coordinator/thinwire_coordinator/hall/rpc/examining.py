"""The call of a node that has not joined: it learns the contract, and measures its line and the coordinator's clock.

Strangers with an invite could make a coordinator send bytes without end. So an examination has a bound on its bytes in
each direction, and the guard's on its time. One network has one at a time, and a pause after it. Few are open in all.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager

from thinwire_coordinator.hall.access.admission import AdmissionRules, Caller, Rate, TokenBuckets
from thinwire_coordinator.hall.access.door import Candidate, Denied, Door, DoorReason
from thinwire_coordinator.hall.rpc.calls import CallRefused, host_of, network_of_peer
from thinwire_coordinator.hall.run import Run
from thinwire_proto import limits
from thinwire_proto.identity.keys import PublicKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.parts import EXAMINE_BYTES, EXAMINE_PART_BYTES

OPEN_MAX = 4
MESSAGES_MAX = 64
"""Requests of one call: with small ones, a call would cost more than its bytes do."""


class Examinations:
    """The examinations that are open, and those that were a short time ago."""

    def __init__(self) -> None:
        self._open: set[str] = set()
        self._pauses = TokenBuckets(Rate(burst=1, each_s=limits.EXAMINE_EVERY_S))

    @contextmanager
    def place(self, network: str) -> Iterator[None]:
        """Have one of the places. Raises CallRefused if a network has one already, or none is free."""
        if network in self._open:
            raise _must_wait("one examination of your network is under way; try again when it has ended")
        if len(self._open) >= OPEN_MAX:
            raise _must_wait("other nodes are being examined; try again in a moment")
        self._open.add(network)
        try:
            yield
        finally:
            self._open.discard(network)

    def take(self, network: str, now: float) -> None:
        """Begin the network's pause. Raises CallRefused if the one before is not over."""
        if not self._pauses.take(network, now):
            wait_s = self._pauses.wait_s(network, now)
            raise _must_wait(f"a node of your network was examined just now; try again in {wait_s:.0f} s")


def _must_wait(text: str) -> CallRefused:
    return CallRefused(Denied(DoorReason.RATE, text))


async def examine(
    run: Run,
    door: Door,
    rules: AdmissionRules,
    examinations: Examinations,
    requests: AsyncIterator[pb.ExamineRequest],
    peer: str,
) -> AsyncGenerator[pb.ExamineReply, None]:
    """Check a node's proof, tell it the contract, and return padding, until it ends the call. peer: as gRPC names it.

    Raises CallRefused."""
    caller = Caller(network_of_peer(peer))
    first, received_us = await anext(requests, pb.ExamineRequest()), run.hall.now_us()
    with examinations.place(caller.network):
        if denied := rules.join(caller, False, run.view.now):
            raise CallRefused(denied)
        candidate = Candidate(PublicKey(first.public_key), first.token, "", host_of(peer))
        denied = await door.examine(candidate, first.challenge, first.signature)
        if denied is not None:
            rules.join_failed(caller, run.view.now)
            raise CallRefused(denied)
        examinations.take(caller.network, run.view.now)
        contract = run.view.contract
        amendments = [amendment.written for amendment in contract.amendments]
        told = pb.ExamineReply(contract=contract.written, amendments=amendments)
        told.received_us, told.answered_us = received_us, run.hall.now_us()
        yield told
        messages = taken = given = 0
        async for request in requests:
            received_us = run.hall.now_us()
            messages, taken, given = messages + 1, taken + len(request.padding), given + request.wanted_bytes
            is_large = max(taken, given) > EXAMINE_BYTES or request.wanted_bytes > EXAMINE_PART_BYTES
            if is_large or messages > MESSAGES_MAX:
                text = f"an examination has at most {EXAMINE_BYTES} bytes each way, in {MESSAGES_MAX} messages"
                raise CallRefused(Denied(DoorReason.TOO_LARGE, text))
            padding = os.urandom(request.wanted_bytes)  # no line compresses it
            yield pb.ExamineReply(padding=padding, received_us=received_us, answered_us=run.hall.now_us())
