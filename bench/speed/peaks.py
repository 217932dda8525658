"""Peak memory of one task in a separate process: `python -m bench.speed.peaks TASK RUN.toml`.

`adamw` trains the run's model with plain AdamW; `merge` adds up the contributions of four nodes; `audit` audits two
contributions. Prints the bytes. The figures are available only on Linux.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import torch

from bench.speed.synthetic import contract_of, model_parameters, uniform_votes
from thinwire_coordinator.hall.ledger.kept_replica import keep
from thinwire_coordinator.planning.problems import read_run
from thinwire_coordinator.star.trust.audit import REFERENCES_MIN, Subject
from thinwire_coordinator.star.trust.auditing import Auditor
from thinwire_coordinator.star.trust.ballots import Ballot
from thinwire_proto.contract import CorpusSpec, RunSpec
from thinwire_proto.data.stdlib import make_corpus
from thinwire_proto.data.text import CorpusText
from thinwire_proto.exact.aggregation import merger_of
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.models import initial_state
from thinwire_proto.out_of_memory import give_back
from thinwire_proto.task import NO_BLOBS, task_of
from thinwire_proto.wire.codec import decode_votes, encode_votes

NODES = 4
STEPS = 3
KIB = 1024


def status_bytes(name: str, pid: int | str = "self") -> int:
    """VmHWM (peak) or VmRSS (resident now) of a process; 0 if it has ended."""
    try:
        found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) * KIB if found else 0


def adamw(run: RunSpec) -> int:
    """Peak of the process with parameters, gradients and both moments in float32, and the batch of a node."""
    model = task_of(run.model).model("cpu")
    first = initial_state(run.model, 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(first.pop(name))
    optimizer = torch.optim.AdamW([parameter for _, parameter in model.named_parameters()], lr=1e-3)
    batch = torch.randint(0, run.model.vocabulary, (run.round.samples, run.model.context + 1))
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.autograd.backward(model.loss(batch))
        optimizer.step()
    return status_bytes("VmHWM")


def merge(run: RunSpec) -> int:
    """Peak of decoding and merging, without the payloads."""
    contract = contract_of(model_parameters(run.model), run.demo)
    layout, k = layout_of(contract.parameters), run.demo.k
    payloads = [encode_votes(uniform_votes(layout, k, seed), layout) for seed in range(NODES)]
    before = _reset_peak()
    merger = merger_of(contract, layout, step=0)
    for payload in payloads:
        merger.add(decode_votes(payload, layout, k), run.round.weight_max)
    merged = merger.merged()
    assert len(merged)
    return status_bytes("VmHWM") - before


def audit(run: RunSpec) -> int:
    """Peak of an audit of one sample a lease, beside the replica's file. The first audit, which builds the model, is
    part of it."""
    corpus = make_corpus()
    data = CorpusSpec(corpus_hash=corpus.hash, corpus_bytes=corpus.size, train_bytes=len(corpus.train))
    contract = contract_of(model_parameters(run.model), run.demo).model_copy(update={"model": run.model, "data": data})
    k = run.demo.k
    votes = [uniform_votes(layout_of(contract.parameters), k, seed) for seed in range(2 + REFERENCES_MIN)]
    ballots = [Ballot(str(node), found.components, found.positive) for node, found in enumerate(votes)]
    own, other = (Subject(ballots[node], (node,)) for node in (0, 1))
    with tempfile.TemporaryDirectory(prefix="thinwire-bench-") as folder:
        (Path(folder) / "snapshots").mkdir()
        replica = Replica(contract, initial_state(run.model, 1), 0, b"")
        kept = keep(replica.freeze(), Path(folder))
        del replica, votes
        before = _reset_peak()
        assert len(Auditor(contract, CorpusText(corpus, contract), NO_BLOBS).audit(kept, own, other, ballots[2:])) == 2
        return status_bytes("VmHWM") - before


def _reset_peak() -> int:
    """The memory in use, from which the peak is counted anew."""
    give_back()  # else the task would use what was freed before it, and how much that is varies
    Path("/proc/self/clear_refs").write_text("5")
    return status_bytes("VmRSS")


if __name__ == "__main__":
    print({"adamw": adamw, "merge": merge, "audit": audit}[sys.argv[1]](read_run(Path(sys.argv[2]))))
