"""Tests of what is found out about a forward pass before training."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

from support.small import small_contract
from thinwire_proto.activations import KEPT_BYTES_MAX, activations_of
from thinwire_proto.pass_memory import Activations
from thinwire_proto.task import Task

START = """
import sys
import thinwire_node.daemon
from thinwire_node.resources import measured_needs
from thinwire_proto.contract import Contract
assert measured_needs(Contract.model_validate_json(sys.argv[1])).model.activations.whole > 0
assert "torch._dynamo" not in sys.modules
"""


class Dropping(nn.Module):
    """Keeps its input, and what dropout drew for it."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def loss(self, tokens: Tensor) -> Tensor:
        return nn.functional.dropout(tokens * self.scale, 0.5).sum()

    def stages(self) -> tuple[nn.Module, ...]:
        return ()


class TaskOf(Task):
    """A task whose model is of this class."""

    def __init__(self, kind: type[Dropping]) -> None:
        self._kind = kind

    def model(self, device: object, blobs: object = None) -> Dropping:
        return self._kind()


def test_a_node_starts_without_torchs_compiler_where_the_model_is_small() -> None:
    """Loading it takes over a second of processor time and 155 MB."""
    contract = small_contract().model_dump_json()
    subprocess.run([sys.executable, "-c", START, contract], check=True)


@pytest.mark.parametrize("error", [IndexError, ValueError, AssertionError, KeyError, AttributeError, MemoryError])
def test_nothing_that_a_model_raises_ends_the_node(error: type[Exception]) -> None:
    """Such as one of another library, whose positions end before the contract's."""

    class Raising(Dropping):
        def loss(self, tokens: Tensor) -> Tensor:
            raise error

    assert activations_of(TaskOf(Raising), small_contract().model) == Activations()  # type: ignore[abstract]


class Hoarding(Dropping):
    """Keeps more of a short sample than its few parameters suggest. real: tensors of 64 MiB that it has really made
    and kept."""

    real = 0

    def loss(self, tokens: Tensor) -> Tensor:
        total = tokens.sum() * self.scale
        for _ in range(8):
            total = total.expand(1 << 24).exp()
            Hoarding.real += type(total) is Tensor
            total = total.sum()
        return total


def test_a_pass_that_keeps_much_is_not_run_to_its_end() -> None:
    assert activations_of(TaskOf(Hoarding), small_contract().model).whole >= 8 * 4 << 24  # type: ignore[abstract]
    assert Hoarding.real == KEPT_BYTES_MAX // (4 << 24) - 1  # the next one, with the sample, would be more
