"""The trainer averages gradients, drops micro-batches that are not finite, and looks ahead."""

from __future__ import annotations

import pytest
import torch

from support.small import random_replica, random_votes, small_contract
from support.small_trainer import small_trainer
from thinwire.compression.sent import Sent
from thinwire_node.star.trainer import Trainer
from thinwire_node.training.compute import TorchCompute
from thinwire_node.training.failures import Interrupted
from thinwire_proto.exact.replica import Replica
from thinwire_proto.exact.schedule import decay, learning_rate, to_float32
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import Votes, merge
from thinwire_proto.task import task_of

NUMBERED = torch.device("cpu:0")
"""The CPU by another name than its tensors report, so that the trainer makes copies as it does for a real device."""


@pytest.fixture
def trainer() -> Trainer:
    contract = small_contract()
    return small_trainer(contract, random_replica(contract))


def momentum_after(trainer: Trainer, batches: list[range]) -> torch.Tensor:
    for batch in batches:
        trainer.micro_batch(batch)
    trainer.extract(1)
    return trainer.rule.momentum.buffer.clone()


def test_micro_batches_add_up_to_the_mean_gradient_of_all_samples() -> None:
    contract = small_contract()
    momenta = []
    for batches in ([range(6)], [range(2), range(2, 3), range(3, 6)]):
        trainer = small_trainer(contract, random_replica(contract))
        momenta.append(momentum_after(trainer, batches))
    assert torch.allclose(momenta[0], momenta[1], atol=1e-8)
    assert momenta[0].abs().max() > 0


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("place", [0, -1])
def test_a_gradient_that_is_not_finite_is_dropped_and_counted(trainer: Trainer, poison: float, place: int) -> None:
    """place: the first and the last tensor, whose gradients come last and first in a backward pass."""
    trainer.micro_batch(range(2))
    sums = trainer.rule.sums
    assert sums is not None
    kept = {name: total.clone() for name, total in sums.items()}

    def poisoned(gradient: torch.Tensor) -> torch.Tensor:
        return gradient.index_fill(0, torch.tensor([1]), poison)

    before = trainer.replica.state_hash()
    leaf = list(trainer._compute.parameters.values())[place]
    handle = leaf.register_hook(poisoned)  # type: ignore[no-untyped-call]
    trainer.micro_batch(range(2, 4))
    handle.remove()
    assert (trainer.samples, trainer.dropped) == (2, 1)
    assert all(torch.allclose(total, kept[name], rtol=1e-5, atol=1e-8) for name, total in sums.items())
    assert trainer.replica.state_hash() == before
    trainer.micro_batch(range(4, 6))
    _, samples, _ = trainer.extract(32)
    assert samples == 4
    assert trainer.rule.momentum.buffer.isfinite().all()


def test_a_micro_batch_that_is_cut_off_in_its_backward_pass_takes_nothing_of_what_was_trained(trainer: Trainer) -> None:
    """The tensors that it had come to keep the mean over its samples too, with the weight of the others."""
    trainer.micro_batch(range(2))
    sums = trainer.rule.sums
    assert sums is not None
    before = {name: total.clone() for name, total in sums.items()}
    whole = small_trainer(trainer.replica.contract, random_replica(trainer.replica.contract))
    whole.micro_batch(range(4))
    assert whole.rule.sums is not None
    cut_off(trainer, range(2, 4))
    first = next(iter(sums))  # the embedding, whose gradient comes last
    assert torch.equal(sums[first], before[first])
    for name in sums.keys() - {first}:
        torch.testing.assert_close(sums[name], whole.rule.sums[name] / 2)
    assert trainer.samples == 2
    trainer.resume()
    trainer.micro_batch(range(2, 4))
    assert trainer.extract(1)[1] == 4


def test_a_first_micro_batch_that_is_cut_off_leaves_no_part_of_a_gradient(trainer: Trainer) -> None:
    cut_off(trainer, range(2))
    assert trainer.samples == 0
    assert trainer.rule.sums is not None
    assert all(not total.any() for total in trainer.rule.sums.values())


def cut_off(trainer: Trainer, samples: range) -> None:
    """Interrupt a micro-batch before the gradient of the embedding, the last in a backward pass."""
    leaf = next(iter(trainer._compute.parameters.values()))
    handles = [
        leaf.register_hook(lambda gradient: trainer.interrupt()),  # type: ignore[no-untyped-call]
        leaf.register_hook(lambda gradient: trainer._compute._check_interrupted()),  # type: ignore[no-untyped-call, attr-defined]
    ]
    with pytest.raises(Interrupted):
        trainer.micro_batch(samples)
    for handle in handles:
        handle.remove()


def test_gradients_are_added_with_the_bits_of_those_taken_whole(trainer: Trainer) -> None:
    compute = TorchCompute(task_of(trainer.replica.contract.model), torch.device("cpu"))
    compute.use(trainer.replica.tensors)
    sums, expected = (
        {name: torch.zeros_like(tensor) for name, tensor in trainer.replica.tensors.items()} for _ in "12"
    )
    for seed, samples in ((1, 3), (2, 2)):
        batch = (torch.randint(0, 256, (samples, 17), generator=torch.Generator().manual_seed(seed)),)
        loss, found = compute.gradients(batch)
        added = compute.add_gradients(batch, sums, samples)
        assert torch.equal(added, loss)
        for name, total in expected.items():
            total.add_(found[name], alpha=samples)
    assert all(torch.equal(sums[name], expected[name]) for name in expected)


def update_of(replica: Replica, *votes: Votes, share: float = 1.0) -> Update:
    """The update that the coordinator would merge from these votes, with its step scaled by `share`."""
    schedule, step = replica.contract.schedule, replica.step
    merged = merge([(one, 1) for one in votes], replica.layout.components)
    return Update(step, to_float32(share * learning_rate(schedule, step)), decay(schedule, step), merged)


def stands_on(trainer: Trainer, replica: Replica) -> bool:
    """Whether the model's parameters equal this replica's bit for bit."""
    model = trainer._compute.parameters
    return all(torch.equal(model[name], tensor) for name, tensor in replica.tensors.items())


def looks_ahead(trainer: Trainer, *sent: Sent, share: float = 1.0) -> bool:
    """Whether the model's parameters equal the replica after updates of these votes alone, to 1/20 of the step.

    Ignores the few parameters without votes, where the sign of an update depends on the position."""
    expected = trainer.replica.clone()
    close = learning_rate(expected.contract.schedule, expected.step) / 20
    for one in sent:
        expected.apply(update_of(expected, one.votes(), share=share), b"")
    model = trainer._compute.parameters
    far = [(model[name] - tensor).abs() > close for name, tensor in expected.tensors.items()]
    return int(sum(one.sum() for one in far)) < 0.01 * sum(one.numel() for one in far)


@pytest.fixture(
    params=[("sign", torch.device("cpu")), ("clipped", torch.device("cpu")), ("clipped", NUMBERED)],
    ids=["signs, tensors shared", "tensors shared", "tensors copied"],
)
def looking(request: pytest.FixtureRequest) -> tuple[Trainer, Sent]:
    """A trainer with weight decay in the middle of a run, and its contribution in flight."""
    magnitude, device = request.param
    schedule = {"learning_rate": 0.01, "weight_decay": 0.1, "steps": 100}
    contract = small_contract(schedule=schedule, demo={"magnitude": magnitude})
    trainer = small_trainer(contract, random_replica(contract, step=20), device)
    trainer.micro_batch(range(4))
    sent, _, _ = trainer.extract(8)
    return trainer, sent


def test_looking_ahead_equals_an_update_of_the_nodes_own_votes(looking: tuple[Trainer, Sent]) -> None:
    trainer, sent = looking
    assert not looks_ahead(trainer, sent)
    trainer.refresh([sent])
    assert looks_ahead(trainer, sent)
    assert not looks_ahead(trainer, sent, share=0.5)


def test_a_refresh_ends_looking_ahead_exactly(looking: tuple[Trainer, Sent]) -> None:
    trainer, sent = looking
    swarms = trainer.replica.clone()
    theirs = random_votes(swarms.layout, 8, seed=1)
    for update in (update_of(swarms, sent.votes(), theirs), update_of(swarms, theirs)):  # counted, and not counted
        trainer.replica = swarms.clone()
        trainer.refresh([sent])
        trainer.replica.apply(update, b"")
        trainer.refresh()
        expected = swarms.clone()
        expected.apply(update, b"")
        assert trainer.replica.state_hash() == expected.state_hash()
        assert stands_on(trainer, expected)


def test_a_refresh_with_a_contribution_in_flight_looks_ahead_from_the_new_parameters(
    looking: tuple[Trainer, Sent],
) -> None:
    trainer, sent = looking
    trainer.refresh([sent])
    trainer.replica.apply(update_of(trainer.replica, random_votes(trainer.replica.layout, 8, seed=1)), b"")
    assert not looks_ahead(trainer, sent)
    trainer.refresh([sent])
    assert looks_ahead(trainer, sent)


def test_the_base_is_the_oldest_step_in_the_gradient_since_the_extraction(looking: tuple[Trainer, Sent]) -> None:
    trainer, sent = looking
    bases = [trainer.base_step]
    trainer.refresh([sent])
    bases.append(trainer.base_step)
    trainer.micro_batch(range(4, 6))  # looking ahead from step 20 counts as step 20
    trainer.replica.apply(update_of(trainer.replica, sent.votes()), b"")
    trainer.refresh()
    trainer.micro_batch(range(6, 8))
    bases.append(trainer.base_step)
    trainer.extract(8)
    bases.append(trainer.base_step)
    trainer.micro_batch(range(8, 10))
    bases.append(trainer.base_step)
    trainer.clear()
    bases.append(trainer.base_step)
    assert bases == [None, None, 20, None, 21, None]
