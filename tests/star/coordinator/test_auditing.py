"""Audits: the gradients' difference against a dense twin, and honest contributions against those of other leases."""

from __future__ import annotations

import gc
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.adapters import CONFIG, base_folder
from support.prepared import prepared
from support.small import random_replica, small_contract, small_corpus
from support.small_trainer import small_trainer
from thinwire_coordinator.hall.access.addresses import group_of
from thinwire_coordinator.hall.events import Cause
from thinwire_coordinator.hall.ledger.creation import keep_blobs
from thinwire_coordinator.hall.ledger.kept_replica import keep
from thinwire_coordinator.star.trust.audit import Subject
from thinwire_coordinator.star.trust.auditing import TIME_SHARE, Auditor, Difference
from thinwire_coordinator.star.trust.ballots import Ballot
from thinwire_coordinator.star.trust.evidence import Audited, Decision, RoundEvidence, Shown
from thinwire_coordinator.star.trust.trust import Trust
from thinwire_node.star.trainer import Trainer
from thinwire_node.training.compute import TorchCompute
from thinwire_proto.blobs import BlobFolder
from thinwire_proto.contract import Contract, RunSpec
from thinwire_proto.contract.models.lora import LoraSpec
from thinwire_proto.data.text import CorpusText
from thinwire_proto.data.token_shards import TokenShards
from thinwire_proto.data.tokens import TokensKind
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.transform import forward
from thinwire_proto.task import NO_BLOBS, complete_model, task_of

NODES, SAMPLES, K = 8, 4, 40
PAIRS, CONTEXT, AUDITS = 600, 47, 12
TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] }}{{ message.content }};{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)


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
        began = time.monotonic()
        honest += [one.z for one in auditor.audit(replica, own, other, references)]
        took_s = time.monotonic() - began
        assert not auditor.due(began + took_s / TIME_SHARE / 2)
        assert auditor.due(began + took_s + took_s / TIME_SHARE)
        copied = Subject(third.ballot, own.positions)
        others.append(auditor.audit(replica, copied, other, references)[0].z)
    assert statistics.mean(honest) > statistics.mean(others) + 1
    assert statistics.mean(honest) > 1


@pytest.mark.parametrize("is_stopped", [False, True])
def test_an_audit_leaves_no_copy_of_the_replica(is_stopped: bool, tmp_path: Path) -> None:
    contract = small_contract(demo={"k": K})
    (tmp_path / "snapshots").mkdir()
    auditor = Auditor(contract, CorpusText(small_corpus(), contract), NO_BLOBS)
    replica = keep(random_replica(contract).freeze(), tmp_path)
    subjects = []
    for number in range(NODES):
        trainer, lease = (
            small_trainer(contract, random_replica(contract)),
            range(number * SAMPLES, (number + 1) * SAMPLES),
        )
        trainer.micro_batch(lease)
        votes = trainer.extract(K)[0].votes()
        subjects.append(Subject(Ballot(f"n{number}", votes.components, votes.positive), tuple(lease)))
    own, other, *rest = subjects
    if is_stopped:
        auditor.stop()
    assert bool(auditor.audit(replica, own, other, [one.ballot for one in rest])) != is_stopped
    assert len(list((tmp_path / "snapshots").iterdir())) == 1
    del replica
    gc.collect()
    assert not list((tmp_path / "snapshots").iterdir())


def preferences(folder: Path) -> Path:
    """Shards of pairs whose responses differ in kind, so that leases have unlike gradients."""
    numbers = np.random.default_rng(1).permutation(1000)[:PAIRS]
    rows = [{"prompt": f"{one}?", "chosen": f"{one * 7}.", "rejected": f"{one * 3}!"} for one in map(int, numbers)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "template.jinja").write_text(TEMPLATE)
    settings: dict[str, Any] = {"chat_template": folder / "template.jinja", "context": CONTEXT, "held_out": 0.1}
    prepared(folder / "data", folder / "pairs.jsonl", **settings)
    return folder / "data"


def preferring(folder: Path) -> tuple[Contract, TokenShards, BlobFolder, Replica]:
    """A run of an adapter that learns preferences, in the middle of training."""
    base = base_folder(folder / "base", torch.bfloat16, config=CONFIG | {"vocab_size": 256})
    spec, paths = complete_model(LoraSpec(base=str(base), context=CONTEXT), lambda: None)
    run = RunSpec.model_validate({"model": spec, "data": {"kind": "tokens", "folder": str(preferences(folder))}})
    data = TokensKind().make(run, lambda: None)
    sections = {name: getattr(run, name) for name in RunSpec.model_fields} | {"data": data.spec}
    contract = Contract(**sections, parameters=task_of(spec).manifest())
    blobs = keep_blobs(folder / "blobs", {**paths, **data.blobs}, lambda: None)
    generator = torch.Generator().manual_seed(2)
    tensors = {one.name: torch.randn(one.shape, generator=generator) / 8 for one in contract.parameters}
    return contract, TokensKind().open(data.file, contract, blobs), blobs, Replica(contract, tensors, 0, b"")


def test_audits_of_preferences_find_who_sends_another_gradient_and_nobody_with_another_base(tmp_path: Path) -> None:
    """Of nodes with 16, 8 and 4 bits in turns, one prefers the rejected responses."""
    contract, data, blobs, replica = preferring(tmp_path)
    auditor, trust, task = Auditor(contract, data, blobs), Trust(), task_of(contract.model)
    widths = [(16, 8, 4)[place % 3] for place in range(NODES - 1)] + [16]
    computes = [TorchCompute(task.in_bits(bits), torch.device("cpu"), blobs) for bits in widths]
    trainers = [Trainer(contract, data, replica, compute) for compute in computes]
    against, in_8_bits, in_4_bits, *references, in_16_bits = [f"n{place}" for place in range(NODES)]
    decisions: list[Decision] = []
    honest: list[float] = []
    for number in range(AUDITS):
        subjects: dict[str, Subject] = {}
        for place, trainer in enumerate(trainers):
            first = (number * NODES + place) * SAMPLES
            trainer.micro_batch(range(first, first + SAMPLES))
            votes = trainer.extract(K)[0].votes()
            positive = ~votes.positive if f"n{place}" == against else votes.positive
            ballot = Ballot(f"n{place}", votes.components, positive)
            subjects[ballot.node] = Subject(ballot, tuple(range(first, first + SAMPLES)))
        of_others = [subjects[node].ballot for node in references]
        audits: list[Audited] = []
        for node, other in ((against, in_4_bits), (in_16_bits, in_8_bits)):
            audits += auditor.audit(replica, subjects[node], subjects[other], of_others)
        shown = tuple(Shown(node, 8.0) for node in subjects)
        decisions += trust.observe(RoundEvidence(number, shown, audits=tuple(audits)), 10.0 * number)[1]
        honest += [one.z for one in audits if one.node != against]
    assert {(decision.node, decision.cause) for decision in decisions} == {(against, Cause.AUDIT)}
    assert len(honest) == 3 * AUDITS
    assert statistics.mean(honest) > 2


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
