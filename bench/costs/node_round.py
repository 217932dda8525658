"""Times each function that a node runs in a round besides forward and backward, in ms of one thread's processor time.

python -m bench.costs.node_round
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from thinwire_node.training.compute import TorchCompute
from thinwire_node.training.trainer import Trainer
from thinwire_proto.contract import Contract, CorpusSpec, RunSpec
from thinwire_proto.data.corpus import Corpus, CorpusFile
from thinwire_proto.data.text import CorpusText
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import merge
from thinwire_proto.models import build_decoder, initial_state, manifest
from thinwire_proto.task import task_of

NODES = 4
SAMPLES = 5
REPEATS = 15
RATE = float(np.float32(1e-3))


def main() -> None:
    torch.set_num_threads(1)
    trainer = _trainer()
    momentum, replica, k = trainer.rule.momentum, trainer.replica, trainer.replica.contract.demo.k
    gradients = {name: torch.randn_like(tensor) for name, tensor in replica.tensors.items()}
    votes = []
    for _ in range(NODES):
        momentum.buffer.normal_()
        votes.append((momentum.extract(k).votes(), 1))
    merged = merge(votes, replica.layout.components)
    momentum.accumulate(gradients, RATE)
    sent = momentum.extract(k)

    _report(f"forward and backward, {SAMPLES} samples", lambda: trainer.micro_batch(range(SAMPLES)))
    _report("accumulate a gradient", lambda: momentum.accumulate(gradients, RATE))
    _report("extract", lambda: momentum.extract(k))
    _report("look-ahead", lambda: trainer.look_ahead([sent]))
    _report(f"apply an update of {NODES} nodes", lambda: replica.apply(Update(replica.step, RATE, 1.0, merged), b""))
    _report("fingerprint", lambda: replica.fingerprint(1))


def _trainer() -> Trainer:
    """A trainer for a new run of the default model, on synthetic text."""
    text = np.random.default_rng(1).integers(32, 127, 1 << 16).astype(np.uint8).tobytes()
    corpus = Corpus([CorpusFile("a", text, False), CorpusFile("b", text, True)])
    run = RunSpec()
    data = CorpusSpec(corpus_hash=corpus.hash, corpus_bytes=corpus.size, train_bytes=len(corpus.train))
    sections = {name: getattr(run, name) for name in RunSpec.model_fields} | {"data": data}
    contract = Contract(**sections, parameters=manifest(build_decoder(run.model, "meta")))
    replica = Replica(contract, initial_state(run.model, 1), 0, b"")
    compute = TorchCompute(task_of(contract.model), torch.device("cpu"))
    return Trainer(contract, CorpusText(corpus, contract), replica, compute)


def _report(name: str, work: Callable[[], object]) -> None:
    """Print the lower quartile of the times, which other work on the machine disturbs least."""
    work()
    spent_ms = []
    for _ in range(REPEATS):
        began = time.thread_time()
        work()
        spent_ms.append((time.thread_time() - began) * 1000)
    print(f"{name:<36}{sorted(spent_ms)[REPEATS // 4]:8.1f}")


if __name__ == "__main__":
    main()
