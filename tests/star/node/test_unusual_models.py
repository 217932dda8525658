"""Models with tied, frozen, unused and four-dimensional tensors train, and replicas stay equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.toy_kinds import SlopesSpec
from support.two_nodes import Counting, TwoNodes
from thinwire_proto.blobs import Blobs
from thinwire_proto.contract import MODELS, Contract, ModelSpec, Parameter
from thinwire_proto.errors import ConfigError
from thinwire_proto.models.trained import manifest, trained
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import NO_BLOBS, TASKS, Task

ROUNDS = 12
TOKENS = 40  # those from SEEN on are in no sample


class Tied(nn.Module):
    """The output matrix is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 64)
        self.head = nn.Linear(64, TOKENS, bias=False)
        self.head.weight = self.embedding.weight

    def loss(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embedding(tokens[:, :-1]))
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def stages(self) -> Iterable[nn.Module]:
        return [self.head]


class Unseen(Tied):
    """Not tied, so the rows of tokens that are never seen get no gradient at all."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, TOKENS, bias=False)


class Frozen(Unseen):
    """The embedding and a buffer are fixed, with values that follow from the code alone."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(TOKENS), torch.arange(64) + 1) * 0.37
        self.embedding.weight = nn.Parameter(angles.sin(), requires_grad=False)
        self.register_buffer("scale", torch.full((64,), 2.0))

    def loss(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.embedding(tokens[:, :-1]) * self.scale)
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Unused(Unseen):
    """One matrix is never used, and one by no loss."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(64, 64)
        self.other = nn.Linear(64, 3)

    def loss(self, tokens: Tensor) -> Tensor:
        self.other(self.embedding(tokens))
        return super().loss(tokens)


class Convolution(Unseen):
    """Kernels of three and four dimensions; their tiles are padded on both sides."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Conv1d(64, 70, 3, padding=1)
        self.plane = nn.Conv2d(1, 5, (3, 7), padding=(1, 3))
        self.head = nn.Linear(70, TOKENS)

    def loss(self, tokens: Tensor) -> Tensor:
        x = self.line(self.embedding(tokens[:, :-1]).transpose(1, 2))
        x = x + self.plane(x[:, None]).mean(1)
        return F.cross_entropy(self.head(x.transpose(1, 2)).flatten(0, 1), tokens[:, 1:].flatten())


class Dropout(Unseen):
    """Half of the inputs are dropped in training."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def loss(self, tokens: Tensor) -> Tensor:
        logits = self.head(self.drop(self.embedding(tokens[:, :-1])))
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Statistics(Unseen):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Sequential(nn.BatchNorm1d(64))


MODULES: dict[str, Callable[[], Any]] = {
    kind.__name__: kind for kind in (Tied, Unseen, Frozen, Unused, Convolution, Dropout, Statistics)
}


@MODELS.register
class UnusualSpec(ModelSpec):
    LOCAL: ClassVar[tuple[str, ...]] = ()
    kind: Literal["unusual"] = "unusual"
    vocabulary: int = TOKENS
    context: int = 16
    module: str = "Tied"


@TASKS.register("unusual")
class UnusualTask(Task):
    def __init__(self, spec: UnusualSpec) -> None:
        self._spec = spec

    def manifest(self) -> tuple[Parameter, ...]:
        return manifest(self.model("meta"))

    def initial_state(self, seed: int, blobs: Blobs = NO_BLOBS) -> dict[str, Tensor]:
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return trained(self.model("cpu"))

    def model(self, device: torch.device | str, blobs: Blobs = NO_BLOBS) -> Any:
        with torch.device(device):  # and not `.to("meta")`, which unties
            return MODULES[self._spec.module]()


def nodes_with(module: str, **sections: Any) -> TwoNodes:
    """Two nodes that have trained a module for some rounds."""
    spec = UnusualSpec(module=module)
    schedule = {"learning_rate": 0.05, "warmup_steps": 1, "steps": 100}
    sections = {"schedule": schedule, "parameters": UnusualTask(spec).manifest()} | sections
    contract = Contract.model_validate({"model": spec, "data": SlopesSpec(), **sections})
    nodes = TwoNodes(contract, Counting(16), UnusualTask(spec).initial_state(1))
    nodes.train(ROUNDS)
    return nodes


@pytest.mark.parametrize(
    ("module", "rule"),
    [
        *((module, "demo") for module in ("Tied", "Unseen", "Frozen", "Unused", "Convolution", "Dropout")),
        *((module, rule) for module in ("Tied", "Convolution") for rule in ("local_adamw", "local_muon")),
    ],
)
def test_nodes_learn_and_stay_equal(module: str, rule: str) -> None:
    nodes = nodes_with(module, rule={"kind": rule})
    nodes.check_exact()
    assert nodes.losses[-1] < 0.8 * nodes.losses[0]


def test_tied_tensors_are_one() -> None:
    nodes = nodes_with("Tied")
    (compute, _), (trainer, _) = nodes.computes, nodes.trainers
    assert list(trainer.replica.tensors) == ["embedding.weight"]
    _, gradients = compute.gradients(Counting(16).batch(range(4)))
    plain = Tied()
    with torch.no_grad():
        plain.embedding.weight.copy_(trainer.replica.tensors["embedding.weight"])
    plain.loss(*Counting(16).batch(range(4))).backward()  # type: ignore[no-untyped-call]
    assert plain.embedding.weight.grad is not None
    assert torch.allclose(gradients["embedding.weight"], plain.embedding.weight.grad, atol=1e-7)


def test_frozen_tensors_do_not_travel_and_keep_their_values() -> None:
    nodes = nodes_with("Frozen")
    model = nodes.computes[0]._model.model
    assert isinstance(model, Frozen)
    assert list(nodes.trainers[0].replica.tensors) == ["head.weight"]
    assert torch.equal(model.embedding.weight, Frozen().embedding.weight)
    assert torch.equal(model.get_buffer("scale"), torch.full((64,), 2.0))
    assert model.head.weight.is_meta


def test_dropout_acts_in_training_only() -> None:
    spec = UnusualSpec(module="Dropout")
    model = Stateless(UnusualTask(spec).model("cpu"))
    parameters = UnusualTask(spec).initial_state(1)
    batch = Counting(16).batch(range(4))
    with torch.no_grad():
        measured = {float(model.loss(parameters, batch)) for _ in range(3)}
    assert len(measured) == 1
    assert len({float(model.loss(parameters, batch)) for _ in range(3)}) == 3


def test_running_statistics_are_refused_wherever_a_model_is_built() -> None:
    said = r"BatchNorm1d, which keeps running statistics .* GroupNorm, LayerNorm or RMSNorm .*resnet50_gn"
    with pytest.raises(ConfigError, match=said):
        UnusualTask(UnusualSpec(module="Statistics")).manifest()
    with pytest.raises(ConfigError, match=said):
        Stateless(Statistics())
    without = Statistics()
    without.norm = nn.Sequential(nn.BatchNorm1d(64, track_running_stats=False))
    Stateless(without)
