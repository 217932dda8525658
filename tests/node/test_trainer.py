"""From samples to a mean gradient; what is not finite is dropped and counted, and touches nothing."""

from __future__ import annotations

import pytest
import torch

from support.small import random_replica, small_contract, small_corpus
from thinwire_node.trainer import Interrupted, Trainer


@pytest.fixture
def trainer() -> Trainer:
    contract = small_contract()
    return Trainer(contract, small_corpus(), random_replica(contract), torch.device("cpu"))


def momentum_after(trainer: Trainer, batches: list[range]) -> torch.Tensor:
    for batch in batches:
        trainer.micro_batch(batch)
    trainer.cut(1)
    return trainer.demo.momentum.clone()


def test_micro_batches_make_up_the_mean_gradient_of_all_samples() -> None:
    contract = small_contract()
    momenta = []
    for batches in ([range(6)], [range(2), range(2, 3), range(3, 6)]):
        trainer = Trainer(contract, small_corpus(), random_replica(contract), torch.device("cpu"))
        momenta.append(momentum_after(trainer, batches))
    assert torch.allclose(momenta[0], momenta[1], atol=1e-8)
    assert momenta[0].abs().max() > 0


def test_a_cut_tells_samples_and_loss_and_begins_anew(trainer: Trainer) -> None:
    trainer.micro_batch(range(4))
    trainer.micro_batch(range(4, 6))
    _, samples, loss = trainer.cut(32)
    assert samples == 6
    assert loss == pytest.approx(5.5, abs=0.5)
    assert trainer.samples == 0


def test_training_leaves_the_replica_alone(trainer: Trainer) -> None:
    before = trainer.replica.state_hash()
    trainer.micro_batch(range(4))
    trainer.cut(32)
    assert trainer.replica.state_hash() == before


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_is_dropped_and_counted(
    trainer: Trainer, poison: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.micro_batch(range(2))
    gradients_of = torch.autograd.grad

    def poisoned(loss: torch.Tensor, parameters: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        first, *rest = gradients_of(loss, parameters)
        first.view(-1)[7] = poison
        return (first, *rest)

    before = trainer.replica.state_hash()
    with monkeypatch.context() as patch:
        patch.setattr(torch.autograd, "grad", poisoned)
        trainer.micro_batch(range(2, 4))
    assert (trainer.samples, trainer.dropped) == (2, 1)
    assert trainer.replica.state_hash() == before
    trainer.micro_batch(range(4, 6))
    _, samples, _ = trainer.cut(32)
    assert samples == 4
    assert trainer.demo.momentum.isfinite().all()


def test_an_update_reaches_the_model(trainer: Trainer) -> None:
    with torch.no_grad():
        trainer.replica.tensors["embedding.weight"].zero_()
    trainer.refresh()
    trainer.micro_batch(range(2))
    _, _, loss = trainer.cut(1)
    assert loss == pytest.approx(5.545, abs=1e-3)  # no embedding, no opinion: ln 256


def test_an_interrupted_micro_batch_keeps_nothing(trainer: Trainer) -> None:
    trainer.micro_batch(range(2))
    trainer.interrupt()
    with pytest.raises(Interrupted):
        trainer.micro_batch(range(2, 4))
    assert trainer.samples == 2


def test_an_interruption_reaches_the_backward_pass(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients_of = torch.autograd.grad

    def interrupted(loss: torch.Tensor, parameters: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        trainer.interrupt()
        return gradients_of(loss, parameters)

    monkeypatch.setattr(torch.autograd, "grad", interrupted)
    with pytest.raises(Interrupted):
        trainer.micro_batch(range(2))
    assert trainer.samples == 0
