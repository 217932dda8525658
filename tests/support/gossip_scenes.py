"""What ranks that gossip do in the tests: each function is a scene, played by all ranks together."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from support.gossip_problem import Network, distance, equal, loss_of, scaled_step, train, values
from support.gossip_ranks import RANKS
from thinwire import Gossip
from thinwire.gossip.checks import STATE_VERSION, with_form
from thinwire_proto.errors import ConfigError, ThinwireError

CODECS = ("bf16", "int8", "sign")


def adam(model: Network) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2)


def first_values(rank: int) -> Any:
    """Models of different seeds. Returns all values once Gossip was made."""
    model = Network(seed=rank)
    gossip = Gossip(model, adam(model))
    found = values(model)
    gossip.finish()
    return found


def unused(rank: int) -> Any:
    """A parameter that has no gradient in the first step, and on rank 0 in none. Returns it after each step."""
    model = Network(seed=0)
    optimizer = adam(model)
    gossip = Gossip(model, optimizer, topology="complete")
    found = []
    for step in range(4):
        model.used = step > 0 and rank > 0
        train(model, optimizer, rank, step, step + 1)
        found.append(model.sometimes.item())
    gossip.finish()
    return found


def averaging(rank: int) -> Any:
    """Returns: whether the block restores all bits, the mean's distance from that of all ranks' parameters, whether
    training then goes on as without it, and the error of a step inside."""
    found: list[Any] = []
    ends = []
    for averages in (True, False):
        model = Network(seed=0)
        optimizer = adam(model)
        gossip = Gossip(model, optimizer, topology="ring")
        train(model, optimizer, rank, 0, 5)
        model.scale.fill_(rank)
        model.calls.fill_(rank)
        if averages:
            before = values(model)
            with gossip.averaged() as present:
                found.append(present)
                found.append(_distance_from_mean(model, before))
                try:
                    train(model, optimizer, rank, 5, 6)
                except ConfigError as error:
                    found.append(str(error))
                model.scale.fill_(9.0)
            found.append(equal(values(model), before))
        train(model, optimizer, rank, 5, 10)
        ends.append(values(model))
        gossip.finish()
    return [*found, equal(*ends)]


def averaging_behind(rank: int) -> Any:
    """All average for good when one rank has made a step less, so that messages of the others wait there. Then they go
    on with a rate of 0. For each setting, whether all keep the bits of the mean."""
    found = []
    for settings in ({"topology": "ring"}, {"topology": "complete", "slack": 2}):
        model = Network(seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        gossip = Gossip(model, optimizer, **settings)
        train(model, optimizer, rank, 0, 5 if rank == 1 else 6)
        gossip.average()
        mean = values(model)
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        train(model, optimizer, rank, 6, 12)
        gossip.finish()
        found.append(equal(values(model), mean))
    return found


def _distance_from_mean(model: Network, before: list[Tensor]) -> float:
    expected = []
    for tensor in before:
        gathered = [torch.empty_like(tensor) for _ in range(RANKS)]
        dist.all_gather(gathered, tensor)
        mean = torch.stack(gathered).mean(0) if tensor.is_floating_point() else tensor
        expected.append(mean)
    return distance(values(model), expected)


def resuming(rank: int) -> Any:
    """For several settings: whether a run that was saved and went on, and one that was loaded from it, equal one
    without a break, to the bit. And whether one without what is pending differs."""
    found = []
    for settings in ({"topology": "ring"}, {"topology": "complete"}, {"topology": "ring", "every": 3}):
        whole, saved = run_training(rank, settings, None, 0, 12, save_at=7)
        again, _ = run_training(rank, settings, saved, 7, 12)
        torn = torch.load(io.BytesIO(saved), weights_only=True)
        torn["gossip"]["exchange"]["delta"] = None
        other = io.BytesIO()
        torch.save(torn | {"gossip": with_form(torn["gossip"])}, other)
        forgetful, _ = run_training(rank, settings, other.getvalue(), 7, 12)
        plain, _ = run_training(rank, settings, None, 0, 12)
        found.append((equal(whole, plain), equal(whole, again), equal(whole, forgetful)))
    return found


def run_training(
    rank: int,
    settings: dict[str, Any],
    state: bytes | None,
    first: int,
    last: int,
    save_at: int | None = None,
    skips: tuple[int, ...] = (),
) -> tuple[list[Tensor], bytes]:
    """Train for the steps from `first` to `last`, from a state if there is one, and save before step `save_at`. Returns
    the values at the end, and what was saved."""
    model = Network(seed=0)
    optimizer = adam(model)
    gossip = Gossip(model, optimizer, **settings)
    gossip.factor = 0.75 if state is None else 1.0  # the state has it
    if state is not None:
        loaded = torch.load(io.BytesIO(state), weights_only=True)
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        gossip.load_state_dict(loaded["gossip"])
    saved = io.BytesIO()
    for step in range(first, last):
        if step == save_at:
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "gossip": gossip.state_dict()}
            torch.save(states, saved)
        if step not in skips:
            train(model, optimizer, rank, step, step + 1)
    before = values(model)
    gossip.finish()
    # Over one-way edges, a rank that has finished also takes what was sent before its peers knew that.
    return before if gossip.topology.is_directed else values(model), saved.getvalue()


def resuming_behind(rank: int) -> Any:
    """Rank 1 skips steps before the save, and rank 2 one, so that messages are under way; nobody waits for others after
    saving. For each codec: the number of open turns in the state, and whether a run from the states equals the one that
    went on, to the bit."""
    found = []
    for codec in ("dense", "int8", "sign"):
        settings = {"topology": "complete", "codec": codec}
        skips = {1: (4, 6), 2: (6,)}.get(rank, ())
        whole, saved = run_training(rank, settings, None, 0, 14, save_at=7, skips=skips)
        again, _ = run_training(rank, settings, saved, 7, 14)
        state = torch.load(io.BytesIO(saved), weights_only=True)["gossip"]["exchange"]
        found.append((len(state["open"]), len(state["later"]), equal(whole, again)))
    return found


def two_saves(rank: int) -> Any:
    """Rank 3 loads the state of another save than the others, and one that is damaged. Returns the errors."""
    model = Network(seed=0)
    gossip = Gossip(model, adam(model))
    states = [gossip.state_dict() for _ in range(2)]
    gossip.finish()
    again = Gossip(model, adam(model))
    errors = []
    for loaded in (states[rank == 3], {"version": STATE_VERSION} if rank == 3 else states[0]):
        try:
            again.load_state_dict(loaded)
        except ConfigError as error:
            errors.append(str(error))
    again.finish()
    return errors


def skipping(rank: int) -> Any:
    """Rank 1's scaler skips three steps; all average once. Returns steps, peers left out and newest iteration."""
    model = Network(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    gossip = Gossip(model, optimizer, topology="ring")
    for step in range(12):
        scaled_step(model, optimizer, scaler, rank, step, rank == 1 and step in {2, 3, 6})
        if step == 8:
            with gossip.averaged() as present:
                assert present == list(range(RANKS))
    gossip.finish()
    return gossip.steps, gossip.stats()["left_out"], gossip.stats()["iteration"]


def unequal_steps(rank: int) -> Any:
    """Each rank makes another number of steps; the last are those of rank 3."""
    model = Network(seed=0)
    optimizer = adam(model)
    gossip = Gossip(model, optimizer, topology="one-peer-exponential")
    train(model, optimizer, rank, 0, 5 + 4 * rank)
    gossip.finish()
    with gossip.averaged() as present:
        return gossip.steps, gossip.stats()["left_out"], present


def mean_stays(rank: int) -> Any:
    """Parameters that differ at first, and a rate of 0. In turn, each rank stops until all others are as far ahead as
    the slack lets them, so its next messages come late. Returns the bias of each rank at the end, and how many messages
    were late."""
    store = distributed_c10d._get_default_store()
    found = []
    for topology, slack in (("ring", 0), ("random-regular", 2), ("one-peer-exponential", 3)):
        model = Network(seed=0, dtype=torch.float64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        gossip = Gossip(model, optimizer, topology=topology, slack=slack)
        model.out.bias.data.fill_(float(rank))
        for step in range(60):
            loss_of(model, rank, step, torch.float64).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            store.set(f"{topology}.{rank}.{step}", "begun")
            if slack and step < 50 and step % 10 == 9 and step // 10 % RANKS == rank:
                store.wait([f"{topology}.{other}.{step + slack}" for other in range(RANKS) if other != rank])
        gossip.finish()
        found.append((model.out.bias.item(), gossip.stats()["late"], gossip.stats()["mixed"]))
    return found


def compressed(rank: int) -> Any:
    """For each codec: the bias of a rank after 60 iterations with a rate of 0, its copies, the bytes of its messages,
    and whether a resumed run of training equals one without a break to the bit."""
    found = {}
    for codec in ("dense", *CODECS):
        model = Network(seed=0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        gossip = Gossip(model, optimizer, topology="ring", codec=codec)
        model.out.bias.data.fill_(float(rank))
        for step in range(60):
            loss_of(model, rank, step).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        copies = gossip.state_dict()["exchange"]["codec"]
        gossip.finish()
        settings = {"topology": "ring", "codec": codec}
        whole, saved = run_training(rank, settings, None, 0, 8, save_at=5)
        again, _ = run_training(rank, settings, saved, 5, 8)
        traffic = {name: gossip.stats()[name] for name in ("bytes_sent", "bytes_received")}
        found[codec] = (model.out.bias.item(), copies, traffic, equal(whole, again))
    return found


def several_dtypes(rank: int) -> Any:
    """Parameters of three dtypes, a scalar, and one that is not contiguous. Returns their means after one exchange."""
    model = torch.nn.ParameterList(
        torch.full(shape, float(rank), dtype=dtype)
        for shape, dtype in (
            ((3,), torch.float32),
            ((2, 2), torch.bfloat16),
            ((), torch.float64),
            ((5,), torch.float32),
        )
    )
    model.append(torch.arange(6.0).view(2, 3).t())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    gossip = Gossip(model, optimizer, topology="complete")
    with torch.no_grad():
        for parameter in model[:4]:
            parameter.fill_(float(rank))
    for parameter in model:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    gossip.finish()
    return [parameter.detach().clone() for parameter in model]


def at_odds(rank: int) -> Any:
    """The errors where ranks differ, or a script does what cannot be."""

    def other(name: str, make: Callable[[], Any]) -> tuple[str, str]:
        try:
            make()
        except ThinwireError as error:
            return name, str(error)
        return name, "no refusal"

    model = Network(seed=0)
    small = torch.nn.Linear(2 + rank // 3, 2)
    found = [
        other("setting", lambda: Gossip(model, adam(model), every=1 + rank // 3)),
        other("shape", lambda: Gossip(small, torch.optim.SGD(small.parameters()))),
    ]
    optimizer = adam(model)
    gossip = Gossip(model, optimizer)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2, requires_grad=True))]})
    found.append(other("group", optimizer.step))
    gossip.finish()
    wrapped = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    found.append(other("wrapped", lambda: Gossip(wrapped, torch.optim.SGD(wrapped.parameters()))))
    return dict(found)


SCENES: tuple[Callable[[int], Any], ...] = (
    first_values,
    unused,
    averaging,
    averaging_behind,
    resuming,
    resuming_behind,
    two_saves,
    skipping,
    unequal_steps,
    mean_stays,
    compressed,
    several_dtypes,
    at_odds,
)
