"""Audits: the gradients' difference against a dense twin, and honest contributions against those of other leases."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest
import torch

from support.new_state import make_state
from support.small import random_replica, small_contract, small_corpus
from support.small_trainer import small_trainer
from thinwire_coordinator.hall.access.addresses import group_of
from thinwire_coordinator.star.trust.audit import Subject
from thinwire_coordinator.star.trust.auditing import TIME_SHARE, Auditor, Difference
from thinwire_coordinator.star.trust.ballots import Ballot
from thinwire_proto.data.text import CorpusText
from thinwire_proto.exact.transform import forward
from thinwire_proto.task import NO_BLOBS

NODES, SAMPLES, K = 8, 4, 40


def test_the_difference_at_components_is_that_of_the_whole_transform() -> None:
    layout = random_replica(small_contract()).layout
    generator = torch.Generator().manual_seed(0)
    first, second = (
        {tensor.name: torch.randn(tensor.shape, generator=generator) for tensor in layout.tensors} for _ in range(2)
    )
    flat = torch.zeros(layout.components)
    for tensor in layout.tensors:
        one, other = first[tensor.name].bfloat16().float(), second[tensor.name]
        layout.add_into(flat, tensor, (one - other) / torch.sqrt(one**2 + other**2))
    whole = [forward(layout.matrices(flat)).reshape(-1), forward(layout.vectors(flat)).reshape(-1)]
    components = np.sort(np.random.default_rng(0).choice(layout.components, 500, replace=False))
    found = Difference(components, layout)
    for tensor in layout.tensors:
        found.take_first(tensor, first[tensor.name])
    for tensor in reversed(layout.tensors):
        found.take_second(tensor, second[tensor.name])
    np.testing.assert_allclose(found.values, torch.cat(whole).numpy()[components], atol=1e-4)


def test_votes_that_come_from_a_lease_are_told_from_those_that_do_not(tmp_path: Path) -> None:
    contract = small_contract(demo={"k": K})
    data, replica = CorpusText(small_corpus(), contract), random_replica(contract)
    auditor, trainers = Auditor(contract, data, NO_BLOBS), [small_trainer(contract, replica) for _ in range(NODES)]
    honest, others = [], []
    for number in range(6):
        subjects = []
        for place, trainer in enumerate(trainers):
            first = (number * NODES + place) * SAMPLES
            trainer.micro_batch(range(first, first + SAMPLES))
            votes = trainer.extract(K)[0].votes()
            ballot = Ballot(f"n{place}", votes.components, votes.positive)
            subjects.append(Subject(ballot, tuple(range(first, first + SAMPLES))))
        own, other, third, *rest = subjects
        references = [subject.ballot for subject in rest]
        honest += [one.z for one in auditor.audit(replica, own, other, references)]
        copied = Subject(third.ballot, own.positions)
        others.append(auditor.audit(replica, copied, other, references)[0].z)
    assert statistics.mean(honest) > statistics.mean(others) + 1
    assert statistics.mean(honest) > 1


def test_audits_keep_their_share_of_the_time(tmp_path: Path) -> None:
    contract = small_contract()
    state = make_state(tmp_path, contract)
    auditor = Auditor(contract, state.data, state.blobs)
    assert auditor.due(0.0)
    nothing = Subject(Ballot("a", np.zeros(0, np.int64), np.zeros(0, bool)), (0,))
    assert auditor.audit(state.load_snapshot(0), nothing, nothing, []) == ()
    assert not auditor.due(0.0)
    assert TIME_SHARE < 0.05
    state.close()


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("203.0.113.7", "203.0.113.0/24"),
        ("::ffff:203.0.113.9", "203.0.113.0/24"),
        ("2001:db8:1:2ff::1", "2001:db8:1:200::/56"),
        ("[2001:db8:1:2aa::9]", "2001:db8:1:200::/56"),
        ("fe80::1%eth0", "fe80::/56"),
        ("", ""),
        ("unix-socket", ""),
    ],
)
def test_addresses_are_grouped_by_network(address: str, group: str) -> None:
    assert group_of(address) == group
