"""Time from a round's deadline to the sealed update, and from there until the last subscriber has received it.

A real coordinator runs in its own process, with rounds on the clock. Its members run in this process: each sends a
whole contribution of synthetic votes on its own connection, and receives the updates. Members process an update only
after all have received it, so that meanwhile only the coordinator's own replica uses the processor, as in a real swarm.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import zstandard

from bench.speed.fanout import START_S, read, receive, serve_raw, started, subscription
from bench.speed.light_members import Common, LightMember
from bench.speed.row import BenchRow
from bench.speed.speeds import merge_in_torch
from bench.speed.synthetic import uniform_votes
from bench.speed.timing import interleaved, threads
from bench.wide_area.programs import POLL_S, Programs, module
from thinwire_proto.exact.tiles import TileLayout
from thinwire_proto.identity.invite import parse_invite
from thinwire_proto.wire.codec import encode_votes
from thinwire_proto.wire.parts import split_for_download

TOPIC = "a round"
MEMBERS = 10
ROUNDS, WARM_UP = 6, 2
K = 32
LARGE, SMALL = "width = 384\nlayers = 6\nheads = 6\nhidden = 1024", "width = 64\nlayers = 1\nheads = 1\nhidden = 64"
"""Models of 10.7M and of 45,000 parameters."""
RUN = """
[model]
{model}
context = 16
[demo]
k = {k}
[schedule]
steps = 100000
[round]
pace = "clock"
length_ms = {length_ms}
"""
"""The context is short, because nothing is trained here."""


@dataclass
class CoordinatorTimes:
    """Times reported by the coordinator, by round, in seconds of the monotonic clock."""

    opened: dict[int, float] = field(default_factory=dict)
    deadline: dict[int, float] = field(default_factory=dict)
    sealed: dict[int, tuple[float, int]] = field(default_factory=dict)
    """(time when the update was on disk, step)."""
    update_bytes: list[int] = field(default_factory=list)

    def take(self, line: dict[str, float]) -> None:
        if "opened" in line:
            self.opened[int(line["opened"])] = line["at"]
        elif "taken" in line:
            number = int(line["taken"])
            self.deadline[number] = self.opened[number] + line["open_s"]
        elif "sealed" in line:
            number = int(line["sealed"])
            self.sealed[number] = self.opened[number] + line["done_s"], int(line["step"])
            self.update_bytes.append(int(line["bytes"]))


class TimedCrowd(Common):
    """Members that record when each of them received each update."""

    def __init__(self, members: int, rounds: int) -> None:
        super().__init__(random.Random(1))
        self._rounds = rounds
        self._bodies: list[bytes] = []
        self.last: dict[int, float] = {}
        """Time at which the last member received the update of a step."""
        self._members = members
        self._received: dict[int, int] = {}
        self._all_received = asyncio.Condition()
        self.votes_layout: TileLayout | None = None

    def got_layout(self, layout: TileLayout) -> None:
        """Make all contributions before the first round. No two are equal, or the coordinator would suspect copies."""
        self.votes_layout = layout
        count = self._members * self._rounds
        self._bodies = [encode_votes(uniform_votes(layout, K, seed), layout) for seed in range(count)]

    def make_body(self) -> bytes:
        return self._bodies.pop() if self._bodies else super().make_body()

    async def arrived(self, name: str, step: int) -> None:
        now = time.monotonic()
        async with self._all_received:
            self._received[step] = self._received.get(step, 0) + 1
            if self._received[step] == self._members:
                self.last[step] = now
                self._all_received.notify_all()
            await self._all_received.wait_for(lambda: step in self.last)


@dataclass(frozen=True)
class RoundFigures:
    """Seconds, as medians over rounds."""

    deadline_to_sealed_s: float
    sealed_to_last_s: float
    update_bytes: int
    layout: TileLayout


async def _swarm(
    folder: Path, programs: Programs, members: int, length_s: float, rounds: int, model: str
) -> RoundFigures:
    run = folder / "run.toml"
    run.write_text(RUN.format(model=model, k=K, length_ms=round(1000 * length_s)))
    coordinator = programs.start(
        "watched", [*module("bench.speed.watched"), str(run), f"{folder}/state", str(members), f"{folder}/invite"]
    )
    programs.wait_for(coordinator, '{"port"')
    invite = parse_invite((folder / "invite").read_text())
    common, randomness = TimedCrowd(members, WARM_UP + rounds), random.Random(2)
    crowd = [LightMember(invite, f"{n}", common, randomness, keeps=n == 0) for n in range(members)]
    tasks = [asyncio.ensure_future(member.run()) for member in crowd]
    while len(common.last) < WARM_UP + rounds:
        programs.check()
        for task in tasks:
            if task.done():
                task.result()
        await asyncio.sleep(POLL_S)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    times = CoordinatorTimes()
    for line in coordinator.text().splitlines():
        if line.startswith("{"):
            times.take(json.loads(line))
    return _figures(times, common, rounds)


def _figures(times: CoordinatorTimes, common: TimedCrowd, rounds: int) -> RoundFigures:
    numbers = [number for number, (_, step) in times.sealed.items() if step in common.last][WARM_UP:][:rounds]
    assert common.votes_layout is not None
    return RoundFigures(
        statistics.median(times.sealed[number][0] - times.deadline[number] for number in numbers),
        statistics.median(common.last[times.sealed[number][1]] - times.sealed[number][0] for number in numbers),
        round(statistics.median(times.update_bytes)),
        common.votes_layout,
    )


async def _raw(size: int, subscribers: int, times: int) -> float:
    """Seconds until the last subscriber of a raw stream has received everything; median of several runs."""
    messages, taken_s = len(list(split_for_download(bytes(size)))), []
    with started(serve_raw, size) as server:
        port = receive(server, START_S)
        streams = await asyncio.gather(*(subscription(port, joins=False) for _ in range(subscribers)))
        for _ in range(WARM_UP + times):
            began = time.monotonic()
            server.send(1)
            await asyncio.gather(*(read(stream, messages) for stream in streams))
            taken_s.append(time.monotonic() - began)
    return statistics.median(taken_s[WARM_UP:])


def _plain_seal(folder: Path, measured: RoundFigures, members: int) -> float:
    """Seconds of the baseline: add up all votes, compress the sums, and write them to disk, starting at the
    deadline."""
    votes = [uniform_votes(measured.layout, K, seed) for seed in range(members)]

    def seal() -> None:
        total = merge_in_torch(votes, measured.layout.components)
        with (folder / "sums").open("wb") as file:
            file.write(zstandard.ZstdCompressor(level=1).compress(total.tobytes()))
            file.flush()
            os.fsync(file.fileno())

    return interleaved(seal)[0]


def members_rows(members: int, length_s: float, rounds: int = ROUNDS, model: str = LARGE) -> Iterator[BenchRow]:
    with tempfile.TemporaryDirectory(prefix="thinwire-bench-") as name, threads(1):
        folder = Path(name)
        with Programs(folder) as programs:
            measured = asyncio.run(_swarm(folder, programs, members, length_s, rounds, model))
        raw_s = asyncio.run(_raw(measured.update_bytes, members, rounds))
        plain_s = _plain_seal(folder, measured, members)
    size = f"{members} nodes, {measured.layout.parameters / 1e6:.1f}M"
    ours_s = measured.deadline_to_sealed_s
    yield BenchRow(TOPIC, f"deadline to sealed, {size}", 1e3 * ours_s, 1e3 * plain_s, "ms", "sum, zstandard, fsync")
    ours_s = measured.sealed_to_last_s
    name = f"raw gRPC, {measured.update_bytes / 1e6:.2g} MB each"
    yield BenchRow(TOPIC, f"sealed to last subscriber, {size}", 1e3 * ours_s, 1e3 * raw_s, "ms", name)


def rows() -> Iterator[BenchRow]:
    yield from members_rows(MEMBERS, 2.0)
