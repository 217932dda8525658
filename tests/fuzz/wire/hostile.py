"""A real node process, and a coordinator that lies to it.

The coordinator proves its identity, and then damages what it sends: in each session, the answers to some of the calls.
A node may refuse, connect again, or give up with an error of its own. It may not fail in another way.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import grpc
from google.protobuf.message import Message

from fuzz.messages import damage_field, damage_of
from fuzz.mutations import damage_safetensors
from support.real import END_S, RealSwarm
from support.small import random_replica, small_contract, small_corpus
from thinwire_proto.identity import statements
from thinwire_proto.identity.keys import SecretKey
from thinwire_proto.wire import service_pb2 as pb
from thinwire_proto.wire.negotiation import PROTOCOL
from thinwire_proto.wire.rows import Row

STREAMED_EVERY_S = 0.004
STREAMED_MAX = 400
"""Messages of one stream, before the coordinator ends it."""
WHOLE = 0.2
"""Of how many messages one is right all the same."""
LYING = {
    **{"Attend": 10, "Updates": 2, "Snapshot": 2, "Contribute": 2, "AskReceipt": 1},
    **{"Hello": 1, "Join": 1, "Corpus": 1, "Probe": 1, "Evaluated": 1},
}
"""The call that is answered badly in a session, and how often; only from Attend on are there many messages in one."""
BUG = re.compile(r"this is a bug|Traceback \(most recent")
NODE_RSS_BYTES_MAX = 2 << 30


@dataclass
class NodeSummary:
    """answers: damaged messages, by call. ends: how the processes ended."""

    answers: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    sessions: int = 0
    rss_bytes: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def found(self) -> bool:
        return bool(self.problems)

    def __str__(self) -> str:
        sent = ", ".join(f"{call} {count:,}" for call, count in self.answers.most_common())
        ends = ", ".join(f"{end} {count}" for end, count in self.ends.most_common())
        lines = [f"damaged answers: {sent}", f"ends of the node: {ends}"]
        lines += [f"FOUND {problem}" for problem in self.problems]
        lines.append(
            f"{self.answers.total():,} damaged messages to a real node in {self.seconds:.0f} s, in {self.sessions:,} "
            f"sessions; memory of the node at most {self.rss_bytes / 1e6:.0f} MB"
        )
        return "\n".join(lines)


class Liar(grpc.GenericRpcHandler):
    """Answers every call of the service with bytes. Which calls are answered badly is drawn anew for each session."""

    def __init__(self, rng: Random, folder: Path, summary: NodeSummary) -> None:
        self._rng = rng
        self._summary = summary
        self._key = SecretKey()
        self._contract = small_contract()
        replica = random_replica(self._contract)
        path = folder / "snapshot.safetensors"
        replica.save(path)
        self._snapshot, self._corpus = path.read_bytes(), small_corpus().pack()
        self._lies = ""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        name = str(handler_call_details.method).rpartition("/")[2]

        async def answer(requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
            first = await anext(aiter(requests), b"")
            if name == "Hello":
                self._begin_session()
            async for message in self._messages(name, first):
                lies = name == self._lies and self._rng.random() > WHOLE
                yield self._damaged(name, message) if lies else message.SerializeToString()

        return grpc.stream_stream_rpc_method_handler(answer)

    def _begin_session(self) -> None:
        self._summary.sessions += 1
        self._lies = self._rng.choices(list(LYING), list(LYING.values()))[0]

    def _damaged(self, name: str, message: Message) -> bytes:
        self._summary.answers[name] += 1
        data = message.SerializeToString()
        if isinstance(message, pb.Announcement) and self._rng.random() < 0.99:  # else the session ends at once
            damage_field(self._rng, message)
            message.state = pb.Announcement.STATE_ROUND
            return message.SerializeToString()
        return damage_of(type(message))(self._rng, data, [data])

    async def _messages(self, name: str, request: bytes) -> AsyncIterator[Message]:
        """Right answers to a call."""
        if name == "Attend":
            for number in range(STREAMED_MAX if name == self._lies else STREAMED_MAX // 4):
                yield self._announcement(number)
                await asyncio.sleep(STREAMED_EVERY_S)
        elif name == "Updates":
            await asyncio.sleep(0.05 if name == self._lies else 20)
            row = Row(0, 0, 1, 1, 1, bytes(32), 9, (), bytes(32))
            signature = self._key.sign(statements.row(row.hash))
            yield pb.UpdatePart(row=row.canonical(), data=b"123456789", head_step=1, signature=signature)
            await asyncio.sleep(2)
        elif name == "Snapshot":
            data = self._snapshot
            if name == self._lies and self._rng.random() < 0.5:
                self._summary.answers["Snapshot"] += 1
                data = damage_safetensors(self._rng, data, [data])
            yield pb.FilePart(size=len(data), data=data)
        elif name == "Corpus":
            yield pb.FilePart(size=len(self._corpus), data=self._corpus)
        else:
            yield self._reply(name, request)

    def _reply(self, name: str, request: bytes) -> Message:
        if name == "Hello":
            challenge = os.urandom(32)
            nonce = pb.HelloRequest.FromString(request).nonce
            signature = self._key.sign(statements.hello(nonce, challenge))
            return pb.HelloReply(public_key=self._key.public.data, challenge=challenge, signature=signature)
        if name == "Join":
            contract = self._contract.written
            return pb.JoinReply(protocol=PROTOCOL, contract=contract, session="s" * 32, take_snapshot=True)
        if name == "Probe":
            now = round(time.monotonic() * 1e6)
            return pb.ProbeReply(term=1, received_us=now, answered_us=now)
        if name in ("Contribute", "AskReceipt"):
            return pb.Receipt(outcome=pb.Receipt.OUTCOME_COUNTED)  # progress, so that the node's pauses stay short
        return pb.LeaveReply() if name == "Leave" else pb.EvaluatedReply()

    def _announcement(self, number: int) -> pb.Announcement:
        part = pb.EvaluationPart(step=0, name="held_out", start=0, count=2, spread=4)
        return pb.Announcement(
            state=pb.Announcement.STATE_ROUND,
            term=1,
            round=number // 40,
            time_left_ms=300,
            k=8,
            nonces=[1],
            lease=[pb.SampleRange(start=8 * (number // 40), count=8)],
            clock_us=round(time.monotonic() * 1e6),
            evaluate=[part] if number % 50 == 0 else [],
        )


def attack_node(folder: Path, inputs: int, seed: int, *, until: float = float("inf")) -> NodeSummary:
    """Start nodes, one after another, that meet the liar, until enough was sent."""
    return asyncio.run(_attack(folder, inputs, Random(seed), until))


async def _attack(folder: Path, inputs: int, rng: Random, until: float) -> NodeSummary:
    summary, began = NodeSummary(), time.monotonic()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Liar(rng, folder, summary),))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    swarm = RealSwarm(folder)
    swarm.address = address
    number = 0
    while time.monotonic() < until and summary.answers.total() < inputs and not summary.problems:
        await _one_life(swarm, number, summary, inputs, until)
        number += 1
    await server.stop(0)
    summary.seconds = time.monotonic() - began
    return summary


async def _one_life(swarm: RealSwarm, number: int, summary: NodeSummary, inputs: int, until: float) -> None:
    """One node process with an empty folder, until it ends or enough was sent."""
    process = await asyncio.to_thread(swarm.node, f"node-{number}")
    while process.running and time.monotonic() < until and summary.answers.total() < inputs:
        with suppress(OSError, IndexError):  # it has just ended
            summary.rss_bytes = max(summary.rss_bytes, _rss_bytes(process.popen.pid))
        await asyncio.sleep(0.1)
    ended = not process.running
    if not ended:
        await asyncio.to_thread(process.end, END_S)
    code = process.popen.wait()
    summary.ends[f"status {code}" if ended else "was told to"] += 1
    log = process.text()
    if found := BUG.search(log):
        summary.problems.append(log[max(0, found.start() - 300) :][:4000])
    if ended and code not in (0, 1):
        summary.problems.append(f"a node ended with status {code}: {process.tail(20)}")
    if summary.rss_bytes > NODE_RSS_BYTES_MAX:
        summary.problems.append(f"a node took {summary.rss_bytes / 1e6:.0f} MB")


def _rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
