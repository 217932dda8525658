"""A real coordinator under attack: damaged calls of nodes and of strangers, and what is no call at all.

Before and after, honest nodes must be served. Its memory and its log must tell of nothing else.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from abuse.target import trusting
from deploy.local_swarm.processes import Process
from fuzz import corpus
from fuzz.messages import damage_field, damage_of
from fuzz.mutations import damage_msgpack
from fuzz.wire import strays
from fuzz.wire.guest import CALLS, Guest, kind_of
from fuzz.wire.tally import Answer, Tally
from support.raw_node import RawNode, opened
from support.real import RealSwarm, real_swarm, run_text
from support.small import random_votes
from thinwire_common.reach.grpc_target import grpc_target
from thinwire_common.reach.hosts import split_address
from thinwire_common.reach.preflight import find_way
from thinwire_proto.identity import statements
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.codec import encode_votes
from thinwire_proto.wire.metadata import REASON, SESSION

CONNECTIONS, WORKERS_EACH, STRAYS = 8, 20, 4
"""A coordinator takes 32 streams on a connection, and a cancelled one counts for a while."""
CONTRIBUTING, SILENT = 16, 4
"""Guests that attend. A round opens when all of them attend, and needs more contributions than those of the ones that
contribute, so that every round is void, and all inputs meet the same parameters. Rounds end by the clock, so that few
contributions are late, and leases are large, so that a guest contributes often in each."""
STEPS = 1000
RUN = run_text(STEPS, samples=64, length_ms=2000, rounds=f"""
pace = "clock"
nodes_max = 96
min_contributions = {CONTRIBUTING + SILENT}
momentum_age_max = 1000000
""")  # fmt: skip
WARM_UP_INPUTS = 2000
GROWTH_BYTES_MAX = 128 << 20
"""The largest growth of the coordinator's memory from after the first inputs to the end of the run."""
ANSWER_S, LONG_S = 60.0, 0.1
"""A call that is not answered within the first is a find. Calls without an end of their own are cancelled after the
second."""
LONG = frozenset({"Attend", "Updates", "Snapshot", "Corpus", "Blob", "Relay"})
CONTRIBUTE, SIGNED, PROVED, WRONG = 0.35, 0.7, 0.7, 0.08
"""Shares: of contributions to an open round among all inputs, of damaged messages that are signed, of joins whose proof
is right, of secrets that are wrong."""
WRONG_SECRETS = ("", "0" * 32, "x", "a" * 4000)
LIVE_MAX = 200
HONEST = 3
FAIR = frozenset(
    {pb.Receipt.REASON_COUNTED, pb.Receipt.REASON_VOID, pb.Receipt.REASON_LATE, pb.Receipt.REASON_SUSPECTED}
)
"""The outcomes that an honest contribution may have: there are too few for an update, a busy round may be over, and the
votes of a newcomer may have no weight yet."""
BUG = re.compile("this is a bug|Traceback")
SAID_MAX = 20


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
            f"{self.tally.inputs:,} inputs over TLS in {self.seconds:.0f} s; {self.tally.kept} inputs kept; memory of "
            f"the coordinator {memory} MB, at most {self.peak_rss_bytes / 1e6:.0f}, bound {self.bound_bytes / 1e6:.0f}"
        )
        return "\n".join([str(self.tally), *(f"FOUND {problem}" for problem in self.problems), total])

    @property
    def found(self) -> bool:
        return bool(self.problems or self.tally.finds)


def attack_coordinator(
    folder: Path, inputs: int, seed: int, *, until: float = float("inf"), keep_in: Path | None = None
) -> WireSummary:
    """Start a coordinator in a folder and attack it. Its rates do not hold, so that more inputs reach what is behind.

    until: a time.monotonic(). keep_in: a folder for messages with new answers."""
    with real_swarm(folder) as swarm:
        process = swarm.coordinator(RUN, "--http", "0.0.0.0:0", through=("unlimited_coordinator.py",))
        summary = WireSummary(bound_bytes=int(process.events("coordinator.memory_bound")[0]["memory_bytes"]))
        began = time.monotonic()
        asyncio.run(
            _attack(swarm, process, summary, Attack(swarm, Random(seed), summary.tally, until, keep_in), inputs)
        )
        summary.seconds = time.monotonic() - began
    return summary


async def _attack(swarm: RealSwarm, process: Process, summary: WireSummary, attack: Attack, inputs: int) -> None:
    async with attack:
        summary.problems += await asyncio.to_thread(_not_served, swarm, "before")
        for part in (min(WARM_UP_INPUTS, inputs), inputs):
            await attack.run(part)
            if not process.running:
                summary.problems.append(f"the coordinator ended: {process.tail(20)}")
                return
            summary.rss_bytes.append(_status_bytes(process, "VmRSS"))
        summary.problems += await asyncio.to_thread(_not_served, swarm, "after")
    summary.peak_rss_bytes = _status_bytes(process, "VmHWM")
    if summary.peak_rss_bytes > summary.bound_bytes:
        summary.problems.append(f"the coordinator took {summary.peak_rss_bytes / 1e6:.0f} MB")
    if (growth := summary.rss_bytes[-1] - summary.rss_bytes[0]) > GROWTH_BYTES_MAX:
        summary.problems.append(f"the coordinator's memory grew by {growth / 1e6:.0f} MB")
    summary.problems += [f"its log says: {line}" for line in _complaints(process)]


class Attack:
    """Guests that attend, and connections on which their calls, and those of strangers, are sent damaged."""

    def __init__(self, swarm: RealSwarm, rng: Random, tally: Tally, until: float, keep_in: Path | None) -> None:
        self._swarm, self._rng, self._tally, self._until, self._keep_in = swarm, rng, tally, until, keep_in
        self._inputs_max = 0
        self._channels: list[grpc.aio.Channel] = []
        self._attending: list[asyncio.Task[None]] = []
        self._seen: set[tuple[str, object, str]] = set()

    async def __aenter__(self) -> Attack:
        swarm, address = self._swarm, split_address(self._swarm.address)
        way = await find_way(*address, None, public_tls=False)
        assert way is not None
        target, options = grpc_target(way, swarm.address, public_tls=False)
        credentials = grpc.ssl_channel_credentials(way.roots)
        options = (("grpc.use_local_subchannel_pool", 1), *options)
        self._channels = [grpc.aio.secure_channel(target, credentials, options) for _ in range(CONNECTIONS)]
        with swarm.channel() as channel:
            self._guests = [Guest(channel, swarm.token) for _ in range(CONTRIBUTING + SILENT)]
            self._joining = Guest(channel, swarm.token)
        node = RawNode(swarm)
        self._fingerprint = lru_cache(maxsize=8)(node.replica.fingerprint)
        votes = [random_votes(node.replica.layout, node.contract.demo.k, seed) for seed in range(8)]
        self._payloads = [encode_votes(one, node.replica.layout) for one in votes]
        self._live = {
            call: [self._joining.right(call).SerializeToString(), *corpus.kept(f"wire {call}")] for call in CALLS
        }
        for number, guest in enumerate(self._guests):
            channel_of = self._channels[number % CONNECTIONS]
            self._attending.append(asyncio.ensure_future(self._attend(channel_of, guest)))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._attending:
            task.cancel()
        await asyncio.gather(*self._attending, return_exceptions=True)
        for channel in self._channels:
            await channel.close()

    async def run(self, inputs_max: int) -> None:
        """Send inputs until there were so many of all kinds."""
        self._inputs_max = inputs_max
        rng, ports = self._rng, (self._swarm.address, str(self._swarm.ready["page"]))
        workers = [self._work(channel) for channel in self._channels for _ in range(WORKERS_EACH)]
        workers.append(self._join(self._channels[0]))
        for make, at in zip((strays.of_grpc, strays.of_http), ports, strict=True):
            port = int(at.rpartition(":")[2])
            workers += [self._send_strays(make, port, Random(rng.random())) for _ in range(STRAYS)]
        await asyncio.gather(*workers)

    @property
    def _goes_on(self) -> bool:
        process = self._swarm.processes[0]
        return time.monotonic() < self._until and self._tally.inputs < self._inputs_max and process.running

    async def _attend(self, channel: grpc.aio.Channel, guest: Guest) -> None:
        call: Any = channel.stream_stream(_path("Attend"), None, pb.Announcement.FromString)
        async for announcement in call(iter([b""]), metadata=((SESSION, guest.secret),)):
            guest.announced = announcement

    async def _work(self, channel: grpc.aio.Channel) -> None:
        while self._goes_on:
            guest = self._rng.choice(self._guests[:CONTRIBUTING])
            secret = guest.secret if self._rng.random() > WRONG else self._rng.choice(WRONG_SECRETS)
            if self._rng.random() < CONTRIBUTE and guest.announced.lease:
                await self._send(channel, "Contribute", self._contribution(guest), secret)
                continue
            call = self._rng.choice(list(CALLS))
            message = self._damaged(guest, call)
            several = self._rng.choice([[message]] * 9 + [[], [message, message], [message, b""]])
            await self._send(channel, call, several, secret)

    async def _join(self, channel: grpc.aio.Channel) -> None:
        """Join with a proof that is right, and all else damaged."""
        while self._goes_on:
            answer = await self._send(channel, "Hello", [pb.HelloRequest(nonce=bytes(32)).SerializeToString()], "")
            if not answer.data:
                return
            self._joining.challenge = pb.HelloReply.FromString(answer.data)
            right: Any = self._joining.right("Join")
            request: Any = self._joining.right("Join")
            damage_field(self._rng, request)
            if self._rng.random() < PROVED:
                for name in ("public_key", "challenge", "signature", "token"):
                    setattr(request, name, getattr(right, name))
            await self._send(channel, "Join", [request.SerializeToString()], "")

    async def _send(self, channel: grpc.aio.Channel, call: str, messages: list[bytes], secret: str) -> Answer:
        """Send a call, count its answer, and keep its first message if the answer is of a new kind."""
        answer = await _called(channel, call, messages, secret)
        message = messages[0] if messages else b""
        self._tally.answered(call, answer, message)
        kind = (call, answer.code, re.sub(r"[0-9a-f]+", "#", answer.text)[:80])
        if kind not in self._seen and message:
            self._seen.add(kind)
            live = self._live[call]
            live[self._rng.randrange(len(live)) if len(live) >= LIVE_MAX else len(live) :] = [message]
            if self._keep_in is not None:
                self._tally.kept += corpus.keep(f"wire {call}", message, self._keep_in)
        return answer

    def _damaged(self, guest: Guest, call: str) -> bytes:
        kind, live = kind_of(call), self._live[call]
        data = damage_of(kind)(self._rng, self._rng.choice(live), live)
        if self._rng.random() > SIGNED:
            return data
        message = kind()
        try:
            message.ParseFromString(data)
        except DecodeError:
            return data
        return bytes(guest.signed(message).SerializeToString())

    def _contribution(self, guest: Guest) -> list[bytes]:
        """A contribution to the open round: header, payload, signature, or the order of its parts is damaged."""
        rng, told = self._rng, guest.announced
        payload, kind = rng.choice(self._payloads), rng.randrange(10)
        if kind <= 4:
            payload = damage_msgpack(rng, payload, self._payloads)
        position = rng.choice(told.lease).start
        header = pb.ContributionHeader(
            term=told.term,
            round=told.round,
            step=told.step,
            base_step=told.step,
            fingerprint=self._fingerprint(told.nonces[0]) if told.nonces else 0,
            samples=1,
            trained_through=position,
            loss=2.5,
            compute_ms=10,
            payload_bytes=len(payload),
        )
        if kind in (4, 5):
            damage_field(rng, header)
        if kind == 6:
            header.signature = rng.choice((bytes(63), bytes(64), rng.randbytes(64)))
        signed = guest.signed(pb.ContributionPart(header=header, data=payload)).header
        if kind == 7:
            payload = rng.choice((payload + b"\0", payload[:-1], b"", payload[::-1]))
        cuts = sorted(rng.randrange(len(payload) + 1) for _ in range(rng.choice((0, 0, 1, 3))))
        pieces = [payload[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(payload)], strict=True)]
        parts = [pb.ContributionPart(data=piece) for piece in pieces]
        parts[0].header.CopyFrom(signed)
        if kind == 8:
            parts.append(pb.ContributionPart(header=header, data=payload[:9]))
        if kind == 9:
            rng.shuffle(parts)
            parts[rng.randrange(len(parts)) :] = rng.choice(([], parts, [pb.ContributionPart()] * 50))
        return [part.SerializeToString() for part in parts]

    async def _send_strays(self, make: Callable[[Random], strays.Stray], port: int, rng: Random) -> None:
        """Send what is no call, on connections of its own."""
        context = trusting()
        if make is strays.of_http:
            context.set_alpn_protocols(["http/1.1"])
        while self._goes_on:
            stray = make(rng)
            outcome = await strays.send("127.0.0.1", port, context if stray.in_tls else None, stray)
            self._tally.counted(stray.label, outcome.split(":", maxsplit=1)[0])
            self._tally.check(stray.label, outcome, stray.data)


def _path(call: str) -> str:
    return f"/thinwire.v1.Swarm/{call}"


async def _called(channel: grpc.aio.Channel, call: str, messages: list[bytes], secret: str) -> Answer:
    """Send messages as they are, and return the first answer."""
    metadata = ((SESSION, secret),) if secret else ()
    send: Any = channel.stream_stream(_path(call))
    sent = send(iter(messages), timeout=ANSWER_S, metadata=metadata)
    try:
        answer = await asyncio.wait_for(sent.read(), LONG_S if call in LONG else ANSWER_S)
    except asyncio.TimeoutError:
        sent.cancel()
        return Answer(None, "cancelled") if call in LONG else Answer(grpc.StatusCode.DEADLINE_EXCEEDED)
    except grpc.aio.AioRpcError as error:
        reason = dict(error.trailing_metadata() or ()).get(REASON, "")
        return Answer(error.code(), error.details() or "", reason=str(reason))
    sent.cancel()
    return Answer(grpc.StatusCode.OK, data=answer if isinstance(answer, bytes) else b"")


def _not_served(swarm: RealSwarm, when: str) -> list[str]:
    """What does not work for honest nodes that join, ask for the status, contribute and leave."""
    problems = []
    for number in range(HONEST):
        try:
            node = RawNode(swarm)
            assert node.stub.Status(pb.StatusRequest(), timeout=ANSWER_S).steps == STEPS
            receipt = node.contribute(opened(node.attend()), node.good_payload())
            assert receipt.reason in FAIR, receipt
            signature = node.key.sign(statements.leave(statements.session_of(node.secret), None))
            node.stub.Leave(pb.LeaveRequest(signature=signature), timeout=ANSWER_S)
            node.channel.close()
        except (grpc.RpcError, AssertionError) as error:
            problems.append(f"{when} the attack, honest node {number}: {error}")
    return problems


def _complaints(process: Process) -> list[str]:
    """Lines of a log that a stranger must not be able to cause: errors, and what calls itself a bug."""
    found = []
    with process.log.open(errors="replace") as file:
        for line in file:
            if BUG.search(line) or _level(line) in ("error", "critical"):
                found.append(line[:3000])
    return list(dict.fromkeys(found))[:SAID_MAX]


def _level(line: str) -> str:
    try:
        return str(json.loads(line).get("level", ""))
    except (ValueError, AttributeError):
        return "error" if line.strip() else ""


def _status_bytes(process: Process, key: str) -> int:
    text = Path(f"/proc/{process.popen.pid}/status").read_text()
    found = re.search(rf"{key}:\s+(\d+) kB", text)
    return int(found[1]) * 1024 if found else 0
