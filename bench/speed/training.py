"""Tokens a second of a node, beside plain AdamW training of the same model in the same process.

    python -m bench.speed.training [--model llama-124m] [--micro-batch 1] [--turns 3] [--threads 2] [--device cpu]

The node is the real one (`Work`, with its threads and its state directory), on token shards in files. Only the
exchange is missing: the command hands it a round and a sealed update of four nodes. In turns with it, the fused
`torch.optim.AdamW` trains the same model on the same batches, on the node's own compute thread. It too sums the
gradients of all micro-batches of a round and then makes one step, so both do the same forward and backward passes.

A whole round of a minute would hold too few turns. So micro-batches and everything else in a round are timed apart, and
the tokens of a round follow:

    tokens = (length of the round − everything else) / seconds of a micro-batch · tokens of a micro-batch

Prints a `Timed` in JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from bench.speed.row import BenchRow
from bench.speed.synthetic import uniform_votes
from bench.speed.timing import BUSY, busy_cores
from bench.wide_area.programs import module
from thinwire_node.exchange.port import AnnouncedRound, SealedUpdate
from thinwire_node.kinds import PartSettings
from thinwire_node.machine import RealMachine
from thinwire_node.session.record import Record
from thinwire_node.settings import NodeOptions
from thinwire_node.star.part import StarPart
from thinwire_node.star.work import Extraction, Work
from thinwire_node.training.device import compute_dtype
from thinwire_node.training.micro_batch import MicroBatch
from thinwire_node.training.threads import NodeJob
from thinwire_proto.blobs import BlobFolder
from thinwire_proto.contract import Contract, ModelSpec, RunSpec
from thinwire_proto.contract.data.prepared import Shard
from thinwire_proto.contract.data.tokens import TokensSpec
from thinwire_proto.contract.round import RoundSpec
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE, Manifest, Source
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import decay, learning_rate, to_float32
from thinwire_proto.exact.update import Update
from thinwire_proto.models import PRESETS
from thinwire_proto.task import Batch, DataSource, data_kind_of, task_of
from thinwire_proto.wire.codec import decode_update, decode_votes, encode_update
from thinwire_proto.wire.rows import Counted, Row

NODES = 4
"""Nodes in an update."""
ROUND_S = 60.0
MICRO_BATCHES = 2
"""Micro-batches between two ends of a round."""
WARM_UP = 1
"""Turns that are not counted: they allocate memory."""
NONCE = 1
SHARDS, SHARD_TOKENS = 4, 1 << 18
"""Of the training part. One more shard is held out."""
SMALL, LARGE = "llama-10m", "llama-124m"
TURNS = 3
THREADS = 2
SHARE_WANTED, DATA_WANTED = 0.95, 0.01

Result = TypeVar("Result")


@dataclass
class Timed:
    """Seconds of each piece, in the order in which they were measured. Node and AdamW took turns.

    micro_batch, plain_micro_batch: forward, backward, and the sum of gradients; data included. round_end: what a node
    does in a round besides. plain_step: AdamW's step. data: reading a micro-batch, which is part of `micro_batch`.
    """

    parameters: int
    tokens: int
    """Of a micro-batch."""
    micro_batch: list[float] = field(default_factory=list)
    plain_micro_batch: list[float] = field(default_factory=list)
    extract: list[float] = field(default_factory=list)
    """Momentum, choice of components, encoding, fingerprint, looking ahead, and the copies of a save that is due."""
    decode: list[float] = field(default_factory=list)
    apply: list[float] = field(default_factory=list)
    plain_step: list[float] = field(default_factory=list)
    data: list[float] = field(default_factory=list)

    @property
    def round_end(self) -> list[float]:
        return [sum(parts) for parts in zip(self.extract, self.decode, self.apply, strict=True)]

    def tokens_a_second(self, round_s: float = ROUND_S) -> tuple[float, float]:
        """Of the node and of AdamW, from medians."""
        ours, theirs = (statistics.median(times) for times in (self.micro_batch, self.plain_micro_batch))
        end, step = statistics.median(self.round_end), statistics.median(self.plain_step)
        return (round_s - end) / round_s * self.tokens / ours, (round_s - step) / round_s * self.tokens / theirs

    def shares(self, round_s: float = ROUND_S) -> list[float]:
        """The node's tokens a second as a share of AdamW's, by turn."""
        ours, theirs = (_by_turn(times) for times in (self.micro_batch, self.plain_micro_batch))
        return [
            (round_s - end) / (round_s - step) * plain / node
            for node, plain, end, step in zip(ours, theirs, self.round_end, self.plain_step, strict=True)
        ]


def _by_turn(times: list[float]) -> list[float]:
    return [sum(times[at : at + MICRO_BATCHES]) / MICRO_BATCHES for at in range(0, len(times), MICRO_BATCHES)]


def token_folder(folder: Path, vocabulary: int, shard_tokens: int = SHARD_TOKENS) -> Path:
    """Write a folder of prepared data. Returns it."""
    blobs = folder / BLOBS_FOLDER
    blobs.mkdir(parents=True)
    rng = np.random.default_rng(1)
    shards = []
    for _ in range(SHARDS + 1):
        data = rng.integers(0, vocabulary, shard_tokens).astype("<u4").tobytes()
        shards.append(Shard(hash=hashlib.sha256(data).hexdigest(), size=len(data), tokens=shard_tokens))
        (blobs / shards[-1].hash).write_bytes(data)
    source = Source(name="random", train=tuple(shards[1:]), held_out=tuple(shards[:1]))
    manifest = Manifest(token="uint32", vocabulary=vocabulary, sources=(source,))
    (folder / MANIFEST_FILE).write_bytes(manifest.written())
    return folder


def token_data(model: ModelSpec, folder: Path, round_s: float) -> tuple[Contract, DataSource]:
    """A contract for `model` with rounds of `round_s` on the clock, and its data, opened."""
    data = TokensSpec(folder=str(token_folder(folder / "data", model.vocabulary)))
    round_ = RoundSpec(pace="clock", length_ms=round(1000 * round_s), base_age_max=1, samples=1024)
    run = RunSpec(model=model, data=data, round=round_)
    kind = data_kind_of(data)
    made = kind.make(run, lambda: None)
    sections = {name: getattr(run, name) for name in RunSpec.model_fields} | {"data": made.spec}
    contract = Contract(**sections, parameters=task_of(model).manifest())
    return contract, kind.open(made.file, contract, BlobFolder(folder / "data" / BLOBS_FOLDER))


class PlainTraining:
    """Training with AdamW, as a loop in torch would have it."""

    def __init__(
        self, model: ModelSpec, state: dict[str, torch.Tensor], data: DataSource, device: torch.device
    ) -> None:
        self._model = task_of(model).model(device)
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                parameter.copy_(state[name])
        parameters = [parameter for _, parameter in self._model.named_parameters()]
        self._optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
        self._data = data
        self._device = device
        self._dtype = compute_dtype(device)

    def micro_batch(self, positions: range) -> float:
        batch: Batch = tuple(tensor.to(self._device) for tensor in self._data.batch(positions))
        with torch.autocast(self._device.type, self._dtype, enabled=self._dtype != torch.float32):
            loss = self._model.loss(*batch)
        torch.autograd.backward(loss)
        return loss.item()

    def step(self) -> None:
        self._optimizer.step()
        # Kept, not freed: of the many micro-batches of a round, all but the first find gradients to add to.
        self._optimizer.zero_grad(set_to_none=False)


class Coordinator:
    """Seals updates of this node and of others, as a coordinator would."""

    def __init__(self, contract: Contract, replica: Replica) -> None:
        self._contract = contract
        self._layout = replica.layout
        self._k = contract.demo.k
        self._others = [uniform_votes(self._layout, self._k, seed) for seed in range(1, NODES)]
        self._number = 0

    def round(self, step: int) -> AnnouncedRound:
        self._number += 1
        return AnnouncedRound(1, self._number, step, time.monotonic() + ROUND_S, self._k, (NONCE,) * 2, ())

    def seal(self, extraction: Extraction, replica: Replica) -> tuple[bytes, Row]:
        """The update's body and its row."""
        claim, weight = extraction.claim, self._contract.round.weight_max
        merger = merger_of(self._contract, self._layout, claim.step)
        for votes in (decode_votes(extraction.payload, self._layout, self._k), *self._others):
            merger.add(votes, weight)
        schedule = self._contract.schedule
        rate, shrink = learning_rate(schedule, claim.step), decay(schedule, claim.step)
        body = encode_update(Update(claim.step, to_float32(rate), to_float32(shrink), merger.merged()), self._layout)
        counted = Counted("0" * 32, extraction.name, weight, claim.samples)
        row = Row(claim.step, claim.round, 1, NONCE, claim.fingerprint, b"0" * 32, len(body), (counted,), replica.head)
        return body, row


async def measure(model: ModelSpec, micro_batch: int, turns: int, device: str, folder: Path) -> Timed:
    """Time node and AdamW in turns. folder: for the data and the node's state."""
    contract, source = token_data(model, folder, ROUND_S)
    first = task_of(model).initial_state(1)
    machine = RealMachine(folder / "node", device)
    with torch.no_grad():
        replica = Replica(contract, {name: tensor.clone() for name, tensor in first.items()}, 0, b"0" * 32)
    state = machine.open_state()
    record = Record(at_once=MicroBatch(micro_batch))
    part = StarPart(PartSettings(contract, state, machine, record, NodeOptions("a", micro_batch, None), ""))
    await part.take_up(source, replica)
    work = part.work
    assert work is not None
    del replica
    plain = PlainTraining(model, first, source, torch.device(machine.device))
    del first
    try:
        return await _turns(work, plain, source, micro_batch, turns)
    finally:
        await work.finish_jobs()
        work.close()
        state.close()


async def _turns(work: Work, plain: PlainTraining, source: DataSource, micro_batch: int, turns: int) -> Timed:
    assert work.replica is not None
    layout, coordinator = work.replica.layout, Coordinator(work.contract, work.replica)
    tokens = micro_batch * work.contract.model.context
    samples = 2 * (turns + WARM_UP) * MICRO_BATCHES * micro_batch
    for turn in range(WARM_UP + turns):
        if turn in (0, WARM_UP):
            timed = Timed(layout.parameters, tokens)
        work.lease.renew([range(samples)])
        for number in range(MICRO_BATCHES):
            first = samples + (turn * MICRO_BATCHES + number) * micro_batch
            positions = range(first, first + micro_batch)
            await _time(timed.micro_batch, work.train(micro_batch))
            await _time(timed.plain_micro_batch, work.run(NodeJob.MICRO_BATCH, plain.micro_batch, positions))
            await _time(timed.data, work.run(NodeJob.MICRO_BATCH, source.batch, positions))
        round_ = coordinator.round(work.replica.step)
        extraction = await _time(timed.extract, work.contribution(round_, round_.k))
        assert extraction is not None
        await work.finish_jobs()
        await _time(timed.plain_step, work.run(NodeJob.MICRO_BATCH, plain.step))
        body, row = coordinator.seal(extraction, work.replica)
        update = await _time(timed.decode, work.run(NodeJob.PREPARE, decode_update, body, layout))
        sealed = SealedUpdate(row, update, len(body), row.step + 1)
        await _time(timed.apply, work.apply(sealed))
        await work.settle(counted=True)
    return timed


async def _time(times: list[float], work: Awaitable[Result]) -> Result:
    began = time.perf_counter()
    result = await work
    times.append(time.perf_counter() - began)
    return result


# rows: on a quiet machine and beside busy processes; the command above in a process of its own


def timed(model: str, turns: int, *more: str) -> Timed:
    command = [*module("bench.speed.training"), "--model", model, "--turns", str(turns), *more]
    return Timed(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))


def rows_from(found: Timed, topic: str, round_s: float) -> Iterator[BenchRow]:
    ours, theirs = found.tokens_a_second(round_s)
    shares = found.shares(round_s)
    what = f"tokens a second; {min(shares):.0%} to {max(shares):.0%} over {len(shares)} turns"
    wanted = SHARE_WANTED * theirs
    yield BenchRow(topic, what, ours, theirs, "/s", "AdamW", better="more", wanted=wanted)
    node, plain = (statistics.median(times) for times in (found.micro_batch, found.plain_micro_batch))
    yield BenchRow(topic, f"a micro-batch of {found.tokens:,} tokens", node, plain, "s", "AdamW")
    end, step = statistics.median(found.round_end), statistics.median(found.plain_step)
    yield BenchRow(topic, "everything else in a round", end, step, "s", "AdamW's step, fused")
    data = statistics.median(found.data)
    yield BenchRow(
        topic, "reading the tokens of a micro-batch", data, node, "s", "the micro-batch", wanted=DATA_WANTED * node
    )


def rows_of(model: str, turns: int, round_s: float) -> Iterator[BenchRow]:
    topic = f"training {model}, {THREADS} threads, rounds of {round_s:g} s"
    yield from rows_from(timed(model, turns, "--threads", str(THREADS)), topic, round_s)
    with busy_cores():
        found = timed(model, turns, "--threads", str(THREADS))
    yield from rows_from(found, f"{topic}, {BUSY}", round_s)


def rows() -> Iterator[BenchRow]:
    yield from rows_of(SMALL, TURNS, ROUND_S)


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.speed.training", description=__doc__)
    parser.add_argument("--model", choices=PRESETS, default="llama-124m")
    parser.add_argument("--micro-batch", type=int, default=1)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory(prefix="thinwire-bench-") as name:
        timed = asyncio.run(measure(PRESETS[given.model], given.micro_batch, given.turns, given.device, Path(name)))
    json.dump(asdict(timed), sys.stdout)


if __name__ == "__main__":
    main()
