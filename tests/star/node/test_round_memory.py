"""A node's round, counted in bytes of tensors: no second set of gradients, and no copies for a save."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from support.small import random_replica, small_contract
from support.small_trainer import small_trainer
from thinwire_node.storage.state import KeptMomentum, NodeState
from thinwire_proto.contract import Contract
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.tiles import layout_of

WIDE = {"width": 256, "layers": 4, "heads": 4, "hidden": 512, "context": 8}
"""Short texts, so that gradients and not activations decide."""


def allocated_peak(work: Callable[[], object]) -> int:
    """The most bytes that torch allocated on the CPU at once during `work`, beyond those from before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None
    events = sorted((event for event in results.events() if event.name() == "[memory]"), key=lambda e: e.start_ns())
    held = peak = 0
    for event in events:
        held += event.nbytes()
        peak = max(peak, held)
    return peak


def wide_contract() -> Contract:
    return small_contract(model=WIDE)


def test_a_micro_batch_holds_no_whole_gradient() -> None:
    contract = wide_contract()
    trainer = small_trainer(contract, random_replica(contract))
    trainer.micro_batch(range(1))
    parameters = layout_of(contract.parameters).parameters
    largest = max(tensor.numel() for tensor in trainer.replica.tensors.values())
    peak = allocated_peak(lambda: trainer.micro_batch(range(1, 2)))
    activations = 4 * WIDE["context"] * WIDE["layers"] * 16 * (WIDE["width"] + WIDE["hidden"])
    assert peak < 4 * (2 * largest) + activations
    assert 4 * (2 * largest) + activations < 4 * parameters / 2  # one gradient of all parameters would fail


def test_a_save_copies_no_tensor(tmp_path: Path) -> None:
    contract = wide_contract()
    replica = random_replica(contract)
    trainer = small_trainer(contract, replica)
    trainer.micro_batch(range(1))
    trainer.extract(16)
    state = NodeState(tmp_path)

    def save() -> None:
        state.publish(state.write_momentum(KeptMomentum(trainer.rule.state(), 1, None)), state.write_replica(replica))

    assert allocated_peak(save) < 1 << 16
    assert allocated_peak(replica.clone) > 4 * layout_of(contract.parameters).parameters - 1
    kept = state.momentum({name: tuple(t.shape) for name, t in trainer.rule.state().items()})
    assert kept is not None
    assert all(torch.equal(tensor, kept.momentum[name]) for name, tensor in trainer.rule.state().items())
    saved = state.replica(contract)
    assert isinstance(saved, Replica)
    assert saved.state_hash() == replica.state_hash()
    state.close()
