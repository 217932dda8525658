"""What two real ranks do with DeMo in its tests: each function is a scene, played by both together."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from support.gossip_ranks import run_scenes
from support.small import SHAPES
from thinwire import DeMo
from thinwire.demo.all_gather import AllGather
from thinwire_proto.errors import ConfigError

RANKS = 2
STEPS = 6
UPDATE_TOPK = 40
RATE, DECAY = 3e-3, 0.1
FLOAT_SHAPES = ((48, 40), (7, 130), (96,), (4, 3, 5, 2), ())
FLOAT: dict[str, Any] = {
    "compression_decay": 0.9,
    "compression_topk": 4,
    "compression_chunk": 16,
    "weight_decay": DECAY,
    "lr": RATE,
}
VOTE: dict[str, Any] = {"compression_decay": 0.9, "weight_decay": DECAY, "lr": RATE}

Shapes = tuple[tuple[int, ...], ...]


def parameters_of(shapes: Shapes, seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(0.02 * torch.randn(shape, generator=generator)) for shape in shapes]


def gradients_of(shapes: Shapes, step: int, rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def give(parameters: list[nn.Parameter], gradients: list[Tensor]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def steps_of(optimizer: DeMo, shapes: Shapes, first: int, last: int) -> None:
    """Steps `first` to `last` − 1, with the gradients of rank 0."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for step in range(first, last):
        give(parameters, gradients_of(shapes, step, 0))
        optimizer.step()


def numbers(parameters: list[nn.Parameter]) -> list[Any]:
    """Copies of the parameters."""
    return [parameter.detach().numpy().copy() for parameter in parameters]


def votes(rank: int) -> Any:
    """Steps on irregular shapes with different gradients per rank. Returns the final parameters and the bytes of the
    last step."""
    parameters = parameters_of(SHAPES)
    optimizer = DeMo(parameters, precondition="adam", magnitude="clipped", **VOTE)
    for step in range(STEPS):
        give(parameters, gradients_of(SHAPES, step, rank))
        before = optimizer.bytes_sent
        optimizer.step()
    return numbers(parameters), optimizer.bytes_sent - before, optimizer.bytes_sent == optimizer.bytes_received


def leaving_out(rank: int) -> Any:
    """Steps that keep fewer components than the ranks send. Returns the final parameters."""
    parameters = parameters_of(SHAPES)
    optimizer = DeMo(parameters, update_topk=UPDATE_TOPK, magnitude="clipped", **VOTE)
    for step in range(STEPS):
        give(parameters, gradients_of(SHAPES, step, rank))
        optimizer.step()
    return numbers(parameters)


def unequal(rank: int) -> Any:
    """Steps in which the ranks differ in every allowed way: missing gradients, a gradient that is not finite, rates
    that differ by a few ulps. Uses two groups, a scheduler and a frozen parameter. Returns the fingerprint of each
    step, the counts of dropped gradients and the frozen parameter."""
    shapes = (*SHAPES, (8, 3, 3, 3), ())
    parameters = parameters_of(shapes)
    parameters[1].requires_grad_(False)
    optimizer = DeMo(
        [
            {"params": parameters[:3], "lr": 2e-3},
            {"params": parameters[3:], "weight_decay": 0.01, "compression_topk": 8},
        ],
        **VOTE,
    )
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step * (1 + 3e-7 * rank))
    found = []
    for step in range(STEPS):
        give(parameters, gradients_of(shapes, step, rank))
        parameters[1].grad = None
        if step % RANKS == rank:
            parameters[step].grad = None
        if step == 2 and rank == 1:
            for parameter in parameters:
                parameter.grad = None
        if step == 3 and rank == 0:
            assert parameters[0].grad is not None
            parameters[0].grad[0, 0] = float("inf")
        optimizer.step()
        scheduler.step()
        found.append(optimizer.fingerprint())
    return found, optimizer.dropped, numbers(parameters[1:2])


def floats(rank: int) -> Any:
    """Steps with the published arithmetic. Returns the final parameters and the momentum."""
    parameters = parameters_of(FLOAT_SHAPES)
    optimizer = DeMo(parameters, values="float", **FLOAT)
    for step in range(STEPS):
        give(parameters, gradients_of(FLOAT_SHAPES, step, rank))
        optimizer.step()
    left = [optimizer.state[parameter]["momentum"].numpy().copy() for parameter in parameters]
    return numbers(parameters), left


def at_odds(rank: int) -> Any:
    """The errors when the ranks' settings, shapes, steps, rates or parameters differ."""
    alone = [dist.new_group([number]) for number in range(RANKS)][rank]
    return [
        refusal([(64, 64)], {"compression_topk": 32 - rank, "precondition_beta": 0.5 - rank / 4}),
        refusal([(64, 64 + rank)], {}),
        refusal([(64, 64)], {"lr": 1e-3 * (1 + rank)}),
        refusal([(64, 64)], {}, seed=rank),
        refusal([(64, 64)], {}, before=alone if rank else None),
    ]


def refusal(
    shapes: list[tuple[int, ...]], settings: dict[str, Any], seed: int = 0, before: dist.ProcessGroup | None = None
) -> str:
    """The error of the first common step. A rank with a group `before` has made one step in it."""
    parameters = parameters_of(tuple(shapes), seed)
    optimizer = DeMo(parameters, **settings)
    if before is not None:
        elsewhere = DeMo(parameters, process_group=before, **settings)
        elsewhere.step()
        optimizer.load_state_dict(elsewhere.state_dict())
    try:
        optimizer.step()
    except ConfigError as error:
        return str(error)
    return "no refusal"


def after_errors(rank: int) -> Any:
    """What follows errors: a step after the parameters were broadcast, as the error says; the error of a setting that
    differs late; and a state that one rank alone has loaded."""
    parameters = parameters_of(((64, 64),), seed=rank)
    optimizer = DeMo(parameters)
    errors = [step_error(optimizer)]
    for parameter in parameters:
        dist.broadcast(parameter.data, 0)
    errors.append(step_error(optimizer))
    if rank:
        optimizer.load_state_dict(optimizer.state_dict())
    errors.append(step_error(optimizer))
    if rank:
        optimizer.param_groups[0]["compression_topk"] = 5
    errors.append(step_error(optimizer))
    optimizer.param_groups[0]["compression_topk"] = 6
    errors.append(step_error(optimizer))
    return errors, optimizer.fingerprint()


def scaled(rank: int) -> Any:
    """Steps by a GradScaler, and the same steps without it. The gradients of rank 1 overflow once. Returns for both the
    fingerprint and the count of dropped gradients."""
    found = []
    for scaler in (torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2), None):
        parameters = parameters_of(SHAPES)
        optimizer = DeMo(parameters, precondition="adam", magnitude="clipped", **VOTE)
        for step in range(STEPS):
            gradients = gradients_of(SHAPES, step, rank)
            give(parameters, [scaler.scale(gradient) for gradient in gradients] if scaler else gradients)
            if step == 2 and rank == 1:
                assert parameters[0].grad is not None
                parameters[0].grad[0, 0] = float("inf")
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
        found.append((optimizer.fingerprint(), optimizer.dropped))
    return found


def averaged(rank: int) -> Any:
    """The warnings of steps in which the gradients are averaged over the ranks, of steps in which they are not, and of
    steps without gradients."""
    found = []
    for averages, gives in ((True, True), (False, True), (False, False)):
        parameters = parameters_of(SHAPES)
        optimizer = DeMo(parameters)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in range(STEPS):
                if gives:
                    give(parameters, gradients_of(SHAPES, step, rank))
                for parameter in parameters if averages else []:
                    dist.all_reduce(parameter.grad)
                optimizer.step()
        found.append([str(warning.message) for warning in caught])
    return found


def without_group(rank: int) -> Any:
    """For both kinds of values: the error of a step after the ranks have left the group, and the momentum of each
    parameter then, as a share of the gradient times the rate. Both are norms, which a DCT leaves as they are."""
    optimizers = [DeMo(parameters_of(SHAPES), lr=RATE, values=values) for values in ("vote", "float")]
    for optimizer in optimizers:
        optimizer.step()
    dist.barrier()
    dist.destroy_process_group()
    os.environ["WORLD_SIZE"] = str(RANKS)  # as torchrun sets it
    found = []
    for optimizer in optimizers:
        parameters, gradients = optimizer.param_groups[0]["params"], gradients_of(SHAPES, 0, rank)
        give(parameters, gradients)
        error = step_error(optimizer)
        momenta = [optimizer.state[parameter].get("momentum") for parameter in parameters]
        momenta = [
            optimizer.state[p]["coefficients"] if m is None else m for p, m in zip(parameters, momenta, strict=True)
        ]
        found.append((error, [float(m.norm() / (RATE * g.norm())) for m, g in zip(momenta, gradients, strict=True)]))
    return found


def step_error(optimizer: DeMo) -> str:
    try:
        optimizer.step()
    except ConfigError as error:
        return str(error)
    return ""


def sizes(rank: int) -> Any:
    """Gathers messages of very different sizes, then of one size. Returns the number of wrong results and the bytes
    sent for messages of equal size."""
    exchange, device, wrong = AllGather(), torch.device("cpu"), 0
    for size in (0, 5000, 1, 100_000, 100_001, 0, 0, 3000, 90_000):
        sent = [bytes([number + 1]) * (size * (number + 1)) for number in range(RANKS)]
        wrong += exchange.gather(sent[rank], device) != sent
    for _ in range(40):
        before = exchange.bytes_sent
        exchange.gather(b"x" * 10_000, device)
    return wrong, exchange.bytes_sent - before


SCENES: tuple[Callable[[int], Any], ...] = (
    votes,
    leaving_out,
    unequal,
    floats,
    at_odds,
    after_errors,
    sizes,
    scaled,
    averaged,
    without_group,  # the last
)


def run_ranks(folder: Path) -> dict[str, list[Any]]:
    """Play all scenes. Returns each rank's results, by scene."""
    found = run_scenes(folder, __name__, RANKS)
    return {scene.__name__: [of_rank[scene.__name__] for of_rank in found] for scene in SCENES}
