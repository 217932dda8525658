"""The studies of many nodes: `make science SCIENCE=--scaling`.

Two kinds of batches, each against AdamW on the same global batch, and each arm with its own sweep of rates at each
number of nodes. Fixed batch: 16 samples of all nodes together. Own batch: four samples of each node. In a gossip run,
runs with own batches are shorter, because one process trains all nodes in turn. The results are in the file of the
main study, whose runs of the fixed batch with four nodes are used.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.convergence.arms import ADAMW, ARMS, DEFAULT, GOSSIP_ARMS, LOCAL_MUON
from bench.convergence.plan import SWEEP_TOKENS, TOKENS, Study
from bench.convergence.run import Size

SAMPLES_A_NODE = 4
SWEEP_ROUNDS, ROUNDS = 128, 1024
"""Steps of the runs with own batches. In a gossip run, only the sweep has so many."""
BEST_GOSSIP = ("gossip-dense-noise", "gossip-dense-muon", "gossip-sign-noise", "gossip-sign-muon")
"""The best arms in a gossip run. Two of them need at least two samples a node."""
TITLES = {"own": "Own batch", "fixed": "Fixed batch", "gossip": "Own batch, in a gossip run"}
"""By the kind of scaling."""


@dataclass(frozen=True)
class Scaling:
    """The runs with one number of nodes. kind: a key of TITLES. study: its runs. baseline: the study whose AdamW has
    the same global batch."""

    kind: str
    nodes: int
    study: Study
    baseline: Study


def _own(nodes: int) -> Scaling:
    size = Size(samples=SAMPLES_A_NODE * nodes)
    tokens = size.samples * size.spec.context
    study = Study((ADAMW, DEFAULT, LOCAL_MUON), size, SWEEP_ROUNDS * tokens, ROUNDS * tokens, (1,), nodes=nodes)
    return Scaling("own", nodes, study, study)


def _fixed(nodes: int) -> Scaling:
    with_four = Study((ADAMW, DEFAULT), Size(), SWEEP_TOKENS, TOKENS, (1,))
    if nodes == with_four.nodes:
        return Scaling("fixed", nodes, with_four, with_four)  # arms in a gossip run are in the main study
    gossip = tuple(arm for arm in GOSSIP_ARMS if ARMS[arm].can_have(nodes, with_four.size.samples))
    return Scaling("fixed", nodes, replace(with_four, arms=(DEFAULT, LOCAL_MUON, *gossip), nodes=nodes), with_four)


def _without_a_centre(nodes: int) -> Scaling:
    study = replace(_own(nodes).study, arms=(ADAMW, *BEST_GOSSIP), tokens=TOKENS)
    return Scaling("gossip", nodes, study, study)


SCALINGS = (
    *(_own(nodes) for nodes in (16, 4, 1, 64, 8)),
    *(_fixed(nodes) for nodes in (4, 16, 1)),
    _without_a_centre(16),
)
"""In the order in which they run. 16 samples cannot be shared by 64 nodes."""
