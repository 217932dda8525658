"""Cost of trust, beside the length of the rounds: comparing the votes of each round, and audits.

The round is that of `bench.speed.signatures`. The coordinator does both on workers of its own, after the seal, so what
they cost the run is cores, not waiting. The target is a share of the rounds' length.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from bench.speed.row import BenchRow
from bench.speed.signatures import MODEL, NODES, SHARE_WANTED
from bench.speed.synthetic import contract_of, model_parameters, uniform_votes
from bench.speed.timing import interleaved, threads
from thinwire_coordinator.cli.options import AUDIT_EVERY
from thinwire_coordinator.star.trust.audit import Subject
from thinwire_coordinator.star.trust.auditing import TIME_SHARE, Auditor
from thinwire_coordinator.star.trust.ballots import Ballot, Secret
from thinwire_coordinator.star.trust.comparison import Comparer
from thinwire_proto.contract import Contract, CorpusSpec, DemoSpec
from thinwire_proto.data.stdlib import make_corpus
from thinwire_proto.data.text import CorpusText
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.models import PRESETS, initial_state
from thinwire_proto.task import NO_BLOBS
from thinwire_proto.wire.codec import decode_votes, encode_votes

TOPIC = "trust of a round"
SAMPLES = 8
AUDITS = 3


def _contract() -> tuple[Contract, CorpusText]:
    corpus, spec = make_corpus(), PRESETS[MODEL]
    data = CorpusSpec(corpus_hash=corpus.hash, corpus_bytes=corpus.size, train_bytes=len(corpus.train))
    contract = contract_of(model_parameters(spec), DemoSpec()).model_copy(update={"model": spec, "data": data})
    return contract, CorpusText(corpus, contract)


def rows() -> Iterator[BenchRow]:
    contract, data = _contract()
    layout, length_s = layout_of(contract.parameters), contract.round.length_s
    k = contract.demo.k
    votes = [uniform_votes(layout, k, seed) for seed in range(NODES)]
    ballots = [Ballot(str(node), found.components, found.positive) for node, found in enumerate(votes)]
    payloads = [encode_votes(found, layout) for found in votes]

    def compare() -> None:
        Comparer(Secret(1)).compare(ballots, lambda node: 1.0)

    def decode() -> None:
        for payload in payloads:
            decode_votes(payload, layout, k, contract.demo.magnitude)

    with threads(1):
        compare_s, _ = interleaved(compare, decode)
        audit_s = _audit_s(contract, data, ballots)
    # an audit that takes long comes less often than every AUDIT_EVERY rounds
    between_s = max(AUDIT_EVERY * length_s, audit_s / TIME_SHARE)
    for what, ours_s, of_s, baseline in (
        (f"compare the votes of {NODES} nodes", compare_s, length_s, "length of the round"),
        ("an audit", audit_s, between_s, "time between audits"),
    ):
        yield BenchRow(TOPIC, what, ours_s, of_s, "s", baseline, wanted=SHARE_WANTED * of_s)


def _audit_s(contract: Contract, data: CorpusText, ballots: list[Ballot]) -> float:
    """Median seconds of an audit of two leases of SAMPLES samples. The first one builds the model, and is left out."""
    auditor = Auditor(contract, data, NO_BLOBS)
    replica = Replica(contract, initial_state(contract.model, contract.data.seed), 0, b"")
    own, other = (Subject(ballots[n], tuple(range(n * SAMPLES, (n + 1) * SAMPLES))) for n in (0, 1))
    taken = []
    for _ in range(1 + AUDITS):
        began = time.perf_counter()
        found = auditor.audit(replica, own, other, ballots[2:])
        taken.append(time.perf_counter() - began)
        assert len(found) == 2, "both were audited"
    return float(np.median(taken[1:]))
