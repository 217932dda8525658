"""States and copies of the DeMo optimizer: what was saved or copied goes on as the original would."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import HashStore

from support.ranks import STEPS, Shapes, parameters_of, steps_of
from support.small import SHAPES
from thinwire import DeMo
from thinwire_proto.errors import ConfigError


@pytest.mark.parametrize("values", ["vote", "float"])
@pytest.mark.parametrize("precondition", ["none", "adam"])
def test_resumed_equals_uninterrupted_bit_for_bit(values: Any, precondition: Any) -> None:
    """Through torch.save, after an odd number of steps, with two groups and a scheduler."""

    def made(parameters: list[nn.Parameter]) -> tuple[DeMo, torch.optim.lr_scheduler.LRScheduler]:
        groups: list[dict[str, Any]] = [
            {"params": parameters[:2]},
            {"params": parameters[2:], "compression_topk": 3, "lr": 1e-2},
        ]
        optimizer = DeMo(groups, values=values, precondition=precondition, compression_decay=0.9)
        return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    def run(optimizer: DeMo, scheduler: torch.optim.lr_scheduler.LRScheduler, first: int, last: int) -> None:
        for step in range(first, last):
            steps_of(optimizer, SHAPES, step, step + 1)
            scheduler.step()

    uninterrupted, interrupted = parameters_of(SHAPES), parameters_of(SHAPES)
    run(*made(uninterrupted), 0, STEPS)
    optimizer, scheduler = made(interrupted)
    run(optimizer, scheduler, 0, 3)
    file = io.BytesIO()
    torch.save([optimizer.state_dict(), scheduler.state_dict()], file)
    again, scheduler_again = made(interrupted)
    file.seek(0)
    optimizer_state, scheduler_state = torch.load(file, weights_only=True)
    again.load_state_dict(optimizer_state)
    scheduler_again.load_state_dict(scheduler_state)
    run(again, scheduler_again, 3, STEPS)
    assert all(torch.equal(a, b) for a, b in zip(uninterrupted, interrupted, strict=True))


@pytest.mark.parametrize("values", ["vote", "float"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))])
def test_a_copy_steps_as_the_original(values: Any, copied: Callable[[DeMo], DeMo]) -> None:
    original = DeMo(parameters_of(SHAPES), values=values, compression_decay=0.9)
    steps_of(original, SHAPES, 0, 2)
    twin = copied(original)
    for optimizer in (original, twin):
        steps_of(optimizer, SHAPES, 2, 4)
    assert twin.fingerprint() == original.fingerprint()
    assert twin.param_groups[0]["params"][0] is not original.param_groups[0]["params"][0]


def test_a_copy_does_not_lose_the_process_group() -> None:
    optimizer = DeMo(parameters_of(SHAPES), process_group=dist.ProcessGroup(HashStore(), 0, 1))
    with pytest.raises(ConfigError, match="create another one, and load the state_dict"):
        copy.deepcopy(optimizer)


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    parameters = parameters_of(SHAPES)
    optimizer = DeMo(parameters)
    steps_of(optimizer, SHAPES, 0, 2)
    before = {name: tensor.clone() for name, tensor in optimizer.state[parameters[0]].items()}

    def state_of(shapes: Shapes, frozen: int | None = None, **settings: Any) -> dict[str, Any]:
        other = parameters_of(shapes)
        if frozen is not None:
            other[frozen].requires_grad_(False)
        donor = DeMo(other, **settings)
        donor.step()
        return donor.state_dict()

    adamw = torch.optim.AdamW(parameters_of(SHAPES))
    for state, words in (
        (
            state_of(((64, 128), *SHAPES[2:], (1,))),
            r"parameter 1 of param group 0 is \[3, 5, 40\] in the state, and \[100, 70\] here",
        ),
        (state_of(SHAPES, frozen=2), "parameter 2 of param group 0 was frozen in the state"),
        (state_of(SHAPES, values="float"), "was made with values='float', and the optimizer with 'vote'"),
        (state_of(SHAPES, precondition="adam"), "was made with precondition='adam'"),
        (adamw.state_dict(), "not a state of DeMo"),
    ):
        with pytest.raises(ConfigError, match=words):
            optimizer.load_state_dict(state)
    with pytest.raises(ValueError, match="doesn't match the size"):  # torch's own message
        optimizer.load_state_dict(state_of(SHAPES[:3]))
    assert all(torch.equal(optimizer.state[parameters[0]][name], tensor) for name, tensor in before.items())
