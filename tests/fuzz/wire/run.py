"""One run over the wire: a coordinator under attack, honest nodes before and after, and what must hold."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import uvloop

from abuse.target import trusting
from fuzz.wire.attack import CONNECTIONS, JOINERS, Attack, Place
from fuzz.wire.calls import messages_in, right
from fuzz.wire.connection import Connection
from fuzz.wire.coordinator import CONTRIBUTING, SILENT, Victim, victim
from fuzz.wire.inputs import Inputs
from fuzz.wire.session import ANSWER_S, OK, NotJoined, Session, called
from fuzz.wire.tally import Tally
from thinwire_coordinator.hall.access.door import DoorReason
from thinwire_proto.exact.replica import Replica, load_replica
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.reason_numbers import NUMBERS
from thinwire_proto.wire.reasons import Reason

HONEST = 3
WARM_UP_INPUTS = 2000
CONNECTIONS_LIMITED = 32
"""Refusals for a rate come late, so more calls are in flight."""
BUSIEST = 0.5
"""So many calls of sessions are made in one of them, whose rate is then too high."""
GROWTH_BYTES_MAX = 128 << 20
"""The largest growth of the coordinator's memory from after the first inputs to the end of the run."""
FAIR = frozenset(NUMBERS[reason] for reason in (Reason.COUNTED, Reason.VOID, Reason.LATE, Reason.SUSPECTED))
"""The outcomes that an honest contribution may have: there are too few for an update, a busy round may be over, and the
votes of a newcomer may have no weight yet."""


@dataclass
class WireSummary:
    tally: Tally = field(default_factory=Tally)
    seconds: float = 0.0
    rss_bytes: list[int] = field(default_factory=list)
    peak_rss_bytes: int = 0
    bound_bytes: int = 0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        memory = " → ".join(f"{size / 1e6:.0f}" for size in self.rss_bytes)
        total = (
            f"{self.tally.inputs:,} inputs over TLS in {self.seconds:.0f} s; {self.tally.kept} inputs kept; "
            f"{self.tally.late:.0%} of the receipts were late; memory of the coordinator {memory} MB, at most "
            f"{self.peak_rss_bytes / 1e6:.0f}, bound {self.bound_bytes / 1e6:.0f}"
        )
        return "\n".join([str(self.tally), *(f"FOUND {problem}" for problem in self.problems), total])

    @property
    def found(self) -> bool:
        return bool(self.problems or self.tally.finds)


def attack_coordinator(
    folder: Path,
    inputs: int,
    seed: int,
    *,
    until: float = float("inf"),
    keep_in: Path | None = None,
    limited: bool = False,
) -> WireSummary:
    """Start a coordinator in a folder and attack it. limited: whether its rates hold."""
    with victim(folder, limited=limited) as attacked:
        found = uvloop.run(_attack(attacked, folder, inputs, seed, until, keep_in, limited))
    found.bound_bytes = attacked.bound_bytes
    if found.peak_rss_bytes > found.bound_bytes:
        found.problems.append(f"the coordinator took {found.peak_rss_bytes / 1e6:.0f} MB")
    return found


async def _attack(
    attacked: Victim, folder: Path, inputs_max: int, seed: int, until: float, keep_in: Path | None, limited: bool
) -> WireSummary:
    rng, summary, began = Random(seed), WireSummary(), time.monotonic()
    page = trusting()
    page.set_alpn_protocols(["http/1.1"])
    place = Place(attacked.host, attacked.port, attacked.http_port, attacked.token, trusting(), page)
    own = [await place.connect(rng) for _ in range(CONTRIBUTING + SILENT)]
    sessions = [await _joined(one, place.token) for one in own]
    for session, one in zip(sessions, own, strict=True):
        session.attend(one)
    replica = await _replica(own[0], sessions[0], folder)
    while not sessions[0].announced.nonces:
        await asyncio.sleep(0.05)
    inputs = Inputs(rng, sessions[:CONTRIBUTING], replica, busiest=BUSIEST if limited else 0.0)
    joining = [Session(SecretKey(rng.randbytes(32)), place.token) for _ in range(JOINERS)]
    await _honest(place, inputs, replica, summary, "before")
    for part in (min(WARM_UP_INPUTS, inputs_max), inputs_max):
        many = CONNECTIONS_LIMITED if limited else CONNECTIONS
        attack = Attack(place, inputs, joining, until=until, inputs_max=part, keep_in=keep_in, connections=many)
        attack.tally = summary.tally
        await attack.run()
        if attacked.alive:
            summary.rss_bytes.append(attacked.rss_bytes())
    summary.seconds = time.monotonic() - began
    if not attacked.alive:
        summary.problems.append(f"the coordinator ended: {attacked.process.tail(20)}")
        return summary
    await _honest(place, inputs, replica, summary, "after")
    summary.peak_rss_bytes = attacked.peak_rss_bytes()
    growth = summary.rss_bytes[-1] - summary.rss_bytes[0]
    if growth > GROWTH_BYTES_MAX:
        summary.problems.append(f"the coordinator's memory grew by {growth / 1e6:.0f} MB")
    summary.problems += [f"its log says: {line}" for line in attacked.complaints()]
    for one in own:
        one.close()
    return summary


async def _joined(connection: Connection, token: bytes) -> Session:
    session = Session(SecretKey(), token)
    await session.join(connection)
    return session


async def _replica(connection: Connection, session: Session, folder: Path) -> Replica:
    """The parameters of the run, fetched as a node does."""
    assert session.contract is not None
    found = bytearray()
    call = await _file(connection, session)
    for message in messages_in(call):
        found += pb.FilePart.FromString(message).data
    path = folder / "fetched.safetensors"
    path.write_bytes(found)
    return load_replica(session.contract, path)


async def _file(connection: Connection, session: Session) -> bytes:
    call = right("Snapshot", b"", session.secret, session.scheme)
    stream, answer = connection.call(call.headers, call.body)
    connection.more_room(stream, 1 << 30)
    return (await asyncio.wait_for(answer, ANSWER_S)).data


async def _honest(place: Place, inputs: Inputs, replica: Replica, summary: WireSummary, when: str) -> None:
    """Three honest nodes join, ask for the status, and contribute. What does not work is a problem."""
    for number in range(HONEST):
        connection = await place.connect(inputs.rng)
        try:
            await _one_honest(await _patiently_joined(connection, place.token), connection, inputs, replica)
        except (asyncio.TimeoutError, AssertionError, IndexError, NotJoined) as error:
            summary.problems.append(f"{when} the attack, honest node {number}: {type(error).__name__} {error}")
        finally:
            connection.close()


async def _patiently_joined(connection: Connection, token: bytes) -> Session:
    """A session. While calls come too often from everywhere, it is tried again, as nodes do."""
    until = time.monotonic() + ANSWER_S
    while True:
        try:
            return await _joined(connection, token)
        except NotJoined as refused:
            if refused.reason != DoorReason.RATE.value or time.monotonic() > until:
                raise


async def _one_honest(session: Session, connection: Connection, inputs: Inputs, replica: Replica) -> None:
    status = await called(connection, "Status", b"")
    assert status.status == OK, f"Status: {status}"
    assert pb.StatusReply.FromString(messages_in(status.data)[0]).steps == 1000, "Status"
    session.attend(connection)
    while not session.announced.lease:
        await asyncio.sleep(0.02)
    header, payload = session.header(replica, {}), session.payload(inputs.rng)
    session.sign(header, payload)
    part = pb.ContributionPart(header=header, data=payload).SerializeToString()
    answer = await called(connection, "Contribute", part, session.secret)
    assert answer.status == OK, f"Contribute: {answer}"
    receipt = pb.Receipt.FromString(messages_in(answer.data)[0])
    assert receipt.reason in FAIR, f"Contribute: {receipt}"
    leave = pb.LeaveRequest(signature=session.key.sign(statements.leave(statements.session_of(session.secret), None)))
    left = await called(connection, "Leave", leave.SerializeToString(), session.secret)
    assert left.status == OK, f"Leave: {left}"
