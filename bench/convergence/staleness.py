"""The cost of stale gradients, and the gain of looking ahead, measured with a swarm in one process without a network.

A node keeps computing while its contribution and the update are in transit. So part of a contribution's gradient, or on
a slow link all of it, is computed on the parameters of the previous step. Here every node computes that part at the
same point as in a swarm: after its own extraction, and before it has the update. Trainer, DeMo, merge and replica are
the real ones. Nothing is encoded, since the codec is lossless.

All nodes share one replica, since replicas are equal to the bit. Arms differ only in the parameters that gradients are
computed on; samples, their order and the initial state are the same. Writes runs/staleness.json.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from bench.convergence.arms import ARMS as CONVERGENCE_ARMS
from bench.convergence.arms import DEFAULT
from thinwire.compression.residual import dropped_part
from thinwire.compression.sent import Sent
from thinwire_coordinator.hall.measuring import HeldOut
from thinwire_node.star.trainer import Trainer
from thinwire_node.training.compute import TorchCompute
from thinwire_proto.contract import Contract, CorpusSpec, ScheduleSpec
from thinwire_proto.data.corpus import Corpus
from thinwire_proto.data.stdlib import make_corpus
from thinwire_proto.data.text import CorpusText
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import decay, learning_rate
from thinwire_proto.exact.topk import topk_selection
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import merge
from thinwire_proto.models import BYTE_PRESETS, build_decoder, initial_state, manifest
from thinwire_proto.task import NO_BLOBS, task_of

CPU = torch.device("cpu")
OUT = Path("runs") / "staleness.json"


@dataclass(frozen=True)
class StalenessArm:
    """stale: share of a contribution's samples that is computed before the node has the update. ahead: how far the node
    looks ahead meanwhile, in steps of the update; 0 for not at all. steps: updates that the node lacks then."""

    stale: float
    ahead: float
    steps: int = 1


ARMS = {
    "fresh": StalenessArm(0.0, 0.0),
    "half": StalenessArm(0.5, 0.0),
    "half-ahead-1": StalenessArm(0.5, 1.0),
    "half-ahead-1.5": StalenessArm(0.5, 1.5),
    "full": StalenessArm(1.0, 0.0),
    "full-ahead-0.5": StalenessArm(1.0, 0.5),
    "full-ahead-1": StalenessArm(1.0, 1.0),
    "full-ahead-1.5": StalenessArm(1.0, 1.5),
    "full-ahead-2": StalenessArm(1.0, 2.0),
    "two": StalenessArm(1.0, 0.0, 2),
    "two-ahead-1": StalenessArm(1.0, 1.0, 2),
}
BASELINE = "fresh"


@dataclass(frozen=True)
class StalenessSetup:
    nodes: int
    samples: int  # of a node in a round
    rounds: int
    seed: int  # of the first state and of the order of samples
    arm: str = DEFAULT  # of the study of convergence, for its settings of `demo`
    rate: float = 1e-3


@dataclass(frozen=True)
class StalenessResult:
    arm: str
    swarm: StalenessSetup
    loss: float  # held-out, nats a byte
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.convergence.staleness", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4, help="samples of 256 bytes for a node and round; default 4")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--settings", choices=CONVERGENCE_ARMS, default=DEFAULT, help="an arm of make science")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    corpus = make_corpus()
    found = []
    for seed in arguments.seeds:
        size = (arguments.nodes, arguments.samples, arguments.rounds)
        swarm = StalenessSetup(*size, seed, arguments.settings, arguments.rate)
        contract = make_contract(corpus, swarm)
        for name in arguments.arms:
            began = time.monotonic()
            loss = held_out_loss(contract, corpus, swarm, ARMS[name])
            found.append(StalenessResult(name, swarm, loss, time.monotonic() - began))
            show(found)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps([asdict(result) for result in found], indent=1) + "\n")
    print(f"written to {OUT}")


def show(found: list[StalenessResult]) -> None:
    """Print the newest result, and its loss relative to the fresh arm with the same seed."""
    new = found[-1]
    baseline = [result.loss for result in found if result.arm == BASELINE and result.swarm == new.swarm]
    lost = f"{new.loss - baseline[0]:+.3f}" if baseline else ""
    what = f"seed {new.swarm.seed}  {new.arm:14}"
    print(f"{what} {new.loss:.3f} nats a byte  {lost:>6}  {new.seconds:4.0f} s", flush=True)


def make_contract(corpus: Corpus, swarm: StalenessSetup) -> Contract:
    """The default contract of the byte model with 0.886M parameters, on this corpus."""
    model = BYTE_PRESETS["byte-1m"]
    return Contract(
        model=model,
        demo=CONVERGENCE_ARMS[swarm.arm].demo,
        schedule=ScheduleSpec(learning_rate=swarm.rate, warmup_steps=min(50, swarm.rounds // 5), steps=swarm.rounds),
        data=CorpusSpec(
            seed=swarm.seed, corpus_hash=corpus.hash, corpus_bytes=corpus.size, train_bytes=len(corpus.train)
        ),
        parameters=manifest(build_decoder(model, "meta")),
    )


def held_out_loss(contract: Contract, corpus: Corpus, swarm: StalenessSetup, arm: StalenessArm) -> float:
    """Train a swarm to its end, and return the loss in nats a byte on held-out text."""
    replica = Replica(contract, initial_state(contract.model, swarm.seed), 0, b"")
    task, data = task_of(contract.model), CorpusText(corpus, contract)
    base = replica.clone()
    trainers = [Trainer(contract, data, base, TorchCompute(task, CPU)) for _ in range(swarm.nodes)]
    state = StaleSwarm(replica, base, trainers, [], [])
    for round_number in range(swarm.rounds):
        train_round(contract, swarm, arm, state, round_number)
    return HeldOut(contract, data, NO_BLOBS).measure(replica, data.held_out_sets()[0])


@dataclass
class StaleSwarm:
    """A swarm between two rounds.

    replica: the newest parameters. base: those that the nodes have. updates: those that the base lacks, the oldest
    first. sent: what each node sent in the rounds of these updates."""

    replica: Replica
    base: Replica
    trainers: list[Trainer]
    updates: list[Update]
    sent: list[list[Sent]]


def train_round(
    contract: Contract, swarm: StalenessSetup, arm: StalenessArm, state: StaleSwarm, round_number: int
) -> None:
    """One round of the whole swarm: compute the remaining samples, extract, compute ahead, then apply the update."""
    early = round(arm.stale * swarm.samples)
    demo, layout, replica = contract.demo, state.replica.layout, state.replica
    extracted = []
    for node, trainer in enumerate(state.trainers):
        positions = lease(swarm, round_number, node)[trainer.samples :]
        if positions:
            trainer.micro_batch(positions)
        extracted.append(trainer.extract(demo.k)[0])
    state.sent.append(extracted)
    if early:  # for the next round, while contributions and updates are in transit
        for node, trainer in enumerate(state.trainers):
            if arm.ahead:
                trainer.look_ahead([sent[node] for sent in state.sent], arm.ahead)
            trainer.micro_batch(lease(swarm, round_number + 1, node)[:early])
    selection = topk_selection(demo, layout, replica.step)
    merged = merge(((sent.votes(), 1) for sent in extracted), layout.components, selection)
    for trainer, sent in zip(state.trainers, extracted, strict=True):
        if part := dropped_part(sent, merged, layout, demo.update_topk):
            trainer.rule.put_back(part)
    step, schedule = replica.step, contract.schedule
    update = Update(step, learning_rate(schedule, step), decay(schedule, step), merged)
    replica.apply(update, b"")
    state.updates.append(update)
    while len(state.updates) >= arm.steps:
        state.base.apply(state.updates.pop(0), b"")
        state.sent.pop(0)
    for trainer in state.trainers:
        trainer.refresh()


def lease(swarm: StalenessSetup, round_number: int, node: int) -> range:
    """Positions of a node's samples in a round."""
    first = (round_number * swarm.nodes + node) * swarm.samples
    return range(first, first + swarm.samples)


if __name__ == "__main__":
    main()
