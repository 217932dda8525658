"""Two real ranks with gloo: what they do for the tests of the optimizer, and what they find."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from multiprocessing.queues import Queue
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from support.small import SHAPES
from thinwire_node import DeMo
from thinwire_node.optimizer.all_gather import AllGather
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


def parameters_of(shapes: tuple[tuple[int, ...], ...], seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(0.02 * torch.randn(shape, generator=generator)) for shape in shapes]


def gradients_of(shapes: tuple[tuple[int, ...], ...], step: int, rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def give(parameters: list[nn.Parameter], gradients: list[Tensor]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient


def numbers(parameters: list[nn.Parameter]) -> list[Any]:
    """What can be sent to the test without sharing memory with it."""
    return [parameter.detach().numpy().copy() for parameter in parameters]


def votes(rank: int) -> Any:
    """Awkward shapes, gradients of each rank's own: parameters at the end, and bytes of the last step."""
    parameters = parameters_of(SHAPES)
    optimizer = DeMo(parameters, precondition="adam", magnitude="clipped", **VOTE)
    for step in range(STEPS):
        give(parameters, gradients_of(SHAPES, step, rank))
        before = optimizer.bytes_sent
        optimizer.step()
    return numbers(parameters), optimizer.bytes_sent - before, optimizer.bytes_sent == optimizer.bytes_received


def leaving_out(rank: int) -> Any:
    """Steps that keep fewer components than the ranks send: parameters at the end."""
    parameters = parameters_of(SHAPES)
    optimizer = DeMo(parameters, update_topk=UPDATE_TOPK, magnitude="clipped", **VOTE)
    for step in range(STEPS):
        give(parameters, gradients_of(SHAPES, step, rank))
        optimizer.step()
    return numbers(parameters)


def unequal(rank: int) -> Any:
    """All in which ranks may differ: missing gradients, one that is not finite, rates by a few ulps. Two groups, a
    scheduler, a frozen parameter. Fingerprints by step, how often each was dropped, and the frozen one."""
    shapes = (*SHAPES, (8, 3, 3, 3), ())
    parameters = parameters_of(shapes)
    parameters[1].requires_grad_(False)
    optimizer = DeMo(
        [
            {"params": parameters[:3], "lr": 2e-3},
            {"params": parameters[3:], "weight_decay": 0.01, "compression_topk": 8, "transform": "hadamard"},
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
    """The published arithmetic: parameters at the end, and what momentum is left."""
    parameters = parameters_of(FLOAT_SHAPES)
    optimizer = DeMo(parameters, values="float", **FLOAT)
    for step in range(STEPS):
        give(parameters, gradients_of(FLOAT_SHAPES, step, rank))
        optimizer.step()
    left = [optimizer.state[parameter]["momentum"].numpy().copy() for parameter in parameters]
    return numbers(parameters), left


def at_odds(rank: int) -> Any:
    """What is said where the ranks' settings, shapes, steps, rates or parameters differ."""
    alone = [dist.new_group([number]) for number in range(RANKS)][rank]
    return [
        refusal([(64, 64)], {"compression_topk": 32 - rank, "alpha": 1 - rank / 2}),
        refusal([(64, 64 + rank)], {}),
        refusal([(64, 64)], {"lr": 1e-3 * (1 + rank)}),
        refusal([(64, 64)], {}, seed=rank),
        refusal([(64, 64)], {}, before=alone if rank else None),
    ]


def refusal(
    shapes: list[tuple[int, ...]], settings: dict[str, Any], seed: int = 0, before: dist.ProcessGroup | None = None
) -> str:
    """Of the first step together, by a rank that has made one `before`, among others."""
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


def sizes(rank: int) -> Any:
    """Bytes of sizes that vary wildly come through whole; steady ones cost little more than themselves."""
    exchange, device, wrong = AllGather(), torch.device("cpu"), 0
    for size in (0, 5000, 1, 100_000, 100_001, 0, 0, 3000, 90_000):
        sent = [bytes([number + 1]) * (size * (number + 1)) for number in range(RANKS)]
        wrong += exchange.gather(sent[rank], device) != sent
    for _ in range(40):
        before = exchange.bytes_sent
        exchange.gather(b"x" * 10_000, device)
    return wrong, exchange.bytes_sent - before


SCENARIOS: tuple[Callable[[int], Any], ...] = (votes, leaving_out, unequal, floats, at_odds, sizes)


def run_ranks(store: str) -> dict[str, list[Any]]:
    """What each rank has found, by scenario. store: a file that is not there yet."""
    context = mp.get_context("spawn")
    queue: Queue[Any] = context.Queue()
    workers = [context.Process(target=_work, args=(rank, store, queue), daemon=True) for rank in range(RANKS)]
    for worker in workers:
        worker.start()
    found = dict(queue.get(timeout=120) for _ in workers)
    for worker in workers:
        worker.join()
    for rank in range(RANKS):
        assert isinstance(found[rank], dict), f"rank {rank}: {found[rank]}"
    return {scenario.__name__: [found[rank][scenario.__name__] for rank in range(RANKS)] for scenario in SCENARIOS}


def _work(rank: int, store: str, queue: Queue[Any]) -> None:
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=RANKS)
        queue.put((rank, {scenario.__name__: scenario(rank) for scenario in SCENARIOS}))
        dist.barrier()
        dist.destroy_process_group()
    except Exception:  # noqa: BLE001 - the test is told
        queue.put((rank, traceback.format_exc()))
