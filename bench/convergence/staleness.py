"""What stale gradients cost, and what of it looking ahead mends: a swarm in one process, without a network.

A node does not stop computing while its contribution and the update are under way. So part of a contribution's
gradient, on a slow link all of it, stands on the parameters of one step before. Here every node computes that part
where it would in a swarm: after its own cut, before it has the update. Trainer, DeMo, merge and replica are the real
ones; nothing is encoded, since what comes out of the codec is what went in.

All nodes share one replica, since replicas are equal to the bit. An arm differs from another in nothing but the
parameters that it computes on: samples, their order and the first state are the same. Writes runs/staleness.json.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from thinwire_coordinator.evaluation import HeldOut
from thinwire_coordinator.ledger.stdlib_corpus import make_corpus
from thinwire_node.training.trainer import Trainer
from thinwire_proto.contract import Contract, DataSpec, ScheduleSpec
from thinwire_proto.data.corpus import Corpus
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import decay, learning_rate
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import merge
from thinwire_proto.models import PRESETS, build, initial_state, manifest

CPU = torch.device("cpu")
OUT = Path("runs") / "staleness.json"


@dataclass(frozen=True)
class Arm:
    """stale: share of a contribution's samples that is computed before the node has the update. ahead: how far it looks
    ahead meanwhile, in steps of the update; 0 is not at all."""

    stale: float
    ahead: float


ARMS = {
    "fresh": Arm(0.0, 0.0),
    "half": Arm(0.5, 0.0),
    "half-ahead-1": Arm(0.5, 1.0),
    "half-ahead-1.5": Arm(0.5, 1.5),
    "full": Arm(1.0, 0.0),
    "full-ahead-0.5": Arm(1.0, 0.5),
    "full-ahead-1": Arm(1.0, 1.0),
    "full-ahead-1.5": Arm(1.0, 1.5),
    "full-ahead-2": Arm(1.0, 2.0),
}
BASELINE = "fresh"


@dataclass(frozen=True)
class Swarm:
    nodes: int
    samples: int  # of a node in a round
    rounds: int
    seed: int  # of the first state and of the order of samples


@dataclass(frozen=True)
class Result:
    arm: str
    swarm: Swarm
    loss: float  # held-out, nats a byte
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.convergence.staleness", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--samples", type=int, default=4, help="of 256 bytes, of a node in a round; default 4")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    corpus = make_corpus()
    found = []
    for seed in arguments.seeds:
        swarm = Swarm(arguments.nodes, arguments.samples, arguments.rounds, seed)
        contract = make_contract(corpus, swarm)
        for name in arguments.arms:
            began = time.monotonic()
            loss = held_out_loss(contract, corpus, swarm, ARMS[name])
            found.append(Result(name, swarm, loss, time.monotonic() - began))
            show(found)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps([asdict(result) for result in found], indent=1) + "\n")
    print(f"written to {OUT}")


def show(found: list[Result]) -> None:
    """Print the newest result, and what it lost against no staleness of the same seed."""
    new = found[-1]
    baseline = [result.loss for result in found if result.arm == BASELINE and result.swarm == new.swarm]
    lost = f"{new.loss - baseline[0]:+.3f}" if baseline else ""
    what = f"seed {new.swarm.seed}  {new.arm:14}"
    print(f"{what} {new.loss:.3f} nats a byte  {lost:>6}  {new.seconds:4.0f} s", flush=True)


def make_contract(corpus: Corpus, swarm: Swarm) -> Contract:
    """The default contract of the 0.886M-parameter byte model on this corpus."""
    model = PRESETS["byte-1m"]
    return Contract(
        model=model,
        schedule=ScheduleSpec(steps=swarm.rounds),
        data=DataSpec(
            seed=swarm.seed, corpus_hash=corpus.hash, corpus_bytes=corpus.size, train_bytes=len(corpus.train)
        ),
        parameters=manifest(build(model, "meta")),
    )


def held_out_loss(contract: Contract, corpus: Corpus, swarm: Swarm, arm: Arm) -> float:
    """Train a swarm to its end; the loss in nats a byte on text that nobody trained on."""
    replica = Replica(contract, initial_state(contract.model, swarm.seed), 0, b"")
    trainers = [Trainer(contract, corpus, replica, CPU) for _ in range(swarm.nodes)]
    for round_number in range(swarm.rounds):
        train_round(contract, swarm, arm, trainers, replica, round_number)
    return HeldOut(contract, corpus).measure(replica)


def train_round(
    contract: Contract, swarm: Swarm, arm: Arm, trainers: list[Trainer], replica: Replica, round_number: int
) -> None:
    """A round of the whole swarm: compute what is still to compute, cut, compute ahead, then take the update."""
    early = round(arm.stale * swarm.samples)
    cuts = []
    for node, trainer in enumerate(trainers):
        positions = lease(swarm, round_number, node)[trainer.samples :]
        if positions:
            trainer.micro_batch(positions)
        cuts.append(trainer.extract(contract.demo.k)[0])
    if early:  # for the round to come, while the contribution and the update are under way
        for node, (trainer, sent) in enumerate(zip(trainers, cuts, strict=True)):
            if arm.ahead:
                trainer.look_ahead(sent, arm.ahead)
            trainer.micro_batch(lease(swarm, round_number + 1, node)[:early])
    merged = merge(((sent.votes(), 1) for sent in cuts), replica.layout.components)
    step, schedule = replica.step, contract.schedule
    replica.apply(Update(step, learning_rate(schedule, step), decay(schedule, step), merged), b"")
    for trainer in trainers:
        trainer.refresh()


def lease(swarm: Swarm, round_number: int, node: int) -> range:
    """The positions of a node's samples in a round."""
    first = (round_number * swarm.nodes + node) * swarm.samples
    return range(first, first + swarm.samples)


if __name__ == "__main__":
    main()
