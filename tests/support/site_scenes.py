"""Scenes of sites: ranks that share parameters by FSDP2 and exchange with another site, beside ranks that hold them
whole. With four ranks, two sites of two; all ranks play all scenes."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from support.torch_state_scenes import SHARDED, matrices, refusal_of
from thinwire import DeMo, Gossip

SITES = 2
DRAWS = 24
STEPS = 4
MOMENTS = ("coefficients", "second")
BEST: dict[str, Any] = {
    "lr": 0.01,
    "compression_decay": 0.9,
    "magnitude": "clipped",
    "precondition": "adam",
    "weight_decay": 0.1,
}


def mesh_of_sites() -> DeviceMesh:
    return init_device_mesh("cpu", (SITES, dist.get_world_size() // SITES), mesh_dim_names=("site", "rank"))


def shapes_drawn(draw: random.Random) -> list[tuple[int, ...]]:
    """Shapes of one to four dimensions, few of which have rows that are a multiple of 64."""
    found: list[tuple[int, ...]] = []
    while len(found) < 5:
        dimensions = [draw.choice([1, 2, 3, 7, 63, 64, 65, 100, 128, 150, 200]) for _ in range(draw.randint(1, 4))]
        if prod(dimensions) < 40_000:
            found.append(tuple(dimensions))
    return found


def settings_drawn(draw: random.Random) -> dict[str, Any]:
    return {
        "compression_decay": 0.9,
        "compression_topk": draw.choice([1, 8, 32]),
        "update_topk": draw.choice([0, 0, 3]),
        "magnitude": draw.choice(["sign", "clipped"]),
        "precondition": draw.choice(["none", "adam"]),
        "weight_decay": draw.choice([0.0, 0.1]),
        "lr": 0.01,
    }


def tensors(shapes: list[tuple[int, ...]], *seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(hash(seed))
    return [torch.randn(shape, generator=generator) for shape in shapes]


def sharded(whole: list[Tensor], mesh: DeviceMesh) -> list[nn.Parameter]:
    """As FSDP2 shards them, without its hooks."""
    return [nn.Parameter(distribute_tensor(tensor.clone(), mesh["rank"], [Shard(0)])) for tensor in whole]


def give(parameters: list[nn.Parameter], gradients: list[Tensor]) -> None:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        sharding = parameter.data if isinstance(parameter.data, DTensor) else None
        mesh = None if sharding is None else sharding.device_mesh
        parameter.grad = gradient.clone() if mesh is None else distribute_tensor(gradient.clone(), mesh, [Shard(0)])


def full(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def drawn(rank: int) -> Any:
    """For each draw of shapes and settings: the steps after which parameters, fingerprints and counts of dropped steps
    equal those of whole ranks, and the largest difference of the learned state at the end."""
    mesh = mesh_of_sites()
    site, between = mesh.get_local_rank("site"), mesh.get_group("site")
    found = []
    for number in range(DRAWS):
        draw = random.Random(number)
        shapes, settings = shapes_drawn(draw), settings_drawn(draw)
        first = tensors(shapes, number)
        whole, shards = [nn.Parameter(tensor.clone()) for tensor in first], sharded(first, mesh)
        optimizers = [DeMo(ours, process_group=between, **settings) for ours in (whole, shards)]
        equal = []
        for step in range(STEPS):
            gradients = tensors(shapes, number, step, site)
            if (step, site) == (2, 1):
                gradients[0].view(-1)[-1] = float("nan")
            for ours, optimizer in zip((whole, shards), optimizers, strict=True):
                give(ours, gradients)
                if step == 1:
                    ours[1].grad = None
                optimizer.step()
            same = all(torch.equal(a, full(b.data)) for a, b in zip(whole, shards, strict=True))
            prints, dropped = {o.fingerprint() for o in optimizers}, {o.dropped for o in optimizers}
            equal.append(same and len(prints) == 1 and dropped == {int(step >= 2 and site == 1)})
        found.append((shapes, settings, equal, _difference(*optimizers)))
    return found


def _difference(one: DeMo, other: DeMo) -> float:
    """Largest absolute difference of two learned states. Their names and shapes must be the same."""
    largest = 0.0
    states = [optimizer.state_dict()["state"] for optimizer in (one, other)]
    assert states[0].keys() == states[1].keys()
    for key, learned in states[0].items():
        assert learned.keys() == states[1][key].keys()
        for name, tensor in learned.items():
            theirs = full(states[1][key][name])
            assert theirs.shape == tensor.shape, (name, theirs.shape, tensor.shape)
            largest = max([largest, *(tensor.double() - theirs.double()).abs().view(-1).tolist()])
    return largest


class Network(nn.Module):
    """Tied and frozen weights, a convolution, vectors, one number, and few rows that are a multiple of 64."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(90, 70)
        self.mix = nn.Conv1d(70, 130, 3, padding=1)
        self.norm = nn.LayerNorm(130)
        self.fixed = nn.Linear(130, 130).requires_grad_(False)
        self.down = nn.Linear(130, 70)
        self.scale = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(70, 90, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.mix(self.embed(tokens).transpose(1, 2)).transpose(1, 2)
        x = self.down(torch.tanh(self.fixed(self.norm(x))))
        loss: Tensor = nn.functional.cross_entropy(self.head(x * self.scale).flatten(0, 1), tokens.flatten())
        return loss


def network(mesh: DeviceMesh | None = None, **policy: Any) -> Network:
    """With the same values each time; sharded if a mesh is given."""
    torch.manual_seed(0)
    model = Network()
    if mesh is not None:
        for part in (model.mix, model.down, model):
            fully_shard(part, mesh=mesh["rank"], **policy)
    return model


def tokens_of(step: int, site: int, rank: int) -> Tensor:
    generator = torch.Generator().manual_seed(10_000 + 100 * step + 10 * site + rank)
    return torch.randint(90, (2, 11), generator=generator)


def trained(rank: int) -> Any:
    """Whether sites end as whole ranks with the mean gradients of two; the learned state too. The second run
    accumulates two gradients without a reduction between them, and clips them by their norm."""
    mesh = mesh_of_sites()
    return {"plain": _trained(mesh, micro=1), "clipped, of two micro-batches": _trained(mesh, micro=2, clip=0.5)}


def _trained(mesh: DeviceMesh, micro: int, clip: float = 0.0) -> dict[str, Any]:
    site, own, between = mesh.get_local_rank("site"), mesh.get_local_rank("rank"), mesh.get_group("site")
    whole, shards = network(), network(mesh)
    assert isinstance(shards, FSDPModule)
    optimizers = [DeMo(model.parameters(), process_group=between, **BEST) for model in (whole, shards)]
    for step in range(STEPS):
        for part in range(micro):
            shards.set_requires_gradient_sync(part == micro - 1)
            (shards(tokens_of(10 * part + step, site, own)) / micro).backward()
            for other in range(2):
                (whole(tokens_of(10 * part + step, site, other)) / micro / 2).backward()
        for model, optimizer in zip((whole, shards), optimizers, strict=True):
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    pairs = [(a, full(b.data)) for a, b in zip(whole.parameters(), shards.parameters(), strict=True)]
    return {
        "equal": float(torch.cat([(a == b).view(-1) for a, b in pairs]).float().mean()),
        "farthest": max(float((a - b).abs().max()) for a, b in pairs),
        "state": _difference(*optimizers),
        "of its site": f"{optimizers[1].fingerprint():016x}",
        "bytes": [_bytes(optimizer) for optimizer in optimizers],
        "sent": [optimizer.bytes_sent for optimizer in optimizers],
    }


def _bytes(optimizer: DeMo) -> int:
    """Of the learned tensors."""
    return sum(t.nbytes for state in optimizer.state.values() for name, t in state.items() if name in MOMENTS)


def variants(rank: int) -> Any:
    """Fingerprints after training in other ways, and the loss before and after."""
    mesh = mesh_of_sites()
    return {name: _variant(mesh, make(mesh)) for name, make in VARIANTS.items()}


def _on_meta(mesh: DeviceMesh) -> nn.Module:
    with torch.device("meta"):
        model = Network()
        model.fixed.requires_grad_(False)
    for part in (model.mix, model.down, model):
        fully_shard(part, mesh=mesh["rank"])
    model.to_empty(device="cpu")
    values = network().state_dict()
    set_model_state_dict(model, values, options=StateDictOptions(full_state_dict=True))
    return model


def _compiled(mesh: DeviceMesh) -> nn.Module:
    torch.manual_seed(0)
    model = Network()
    for part in (model.mix, model.down):
        part.compile(backend="aot_eager")
        fully_shard(part, mesh=mesh["rank"])
    fully_shard(model, mesh=mesh["rank"])
    return model


VARIANTS: dict[str, Callable[[DeviceMesh], nn.Module]] = {
    "plain": network,
    "on the device meta first": _on_meta,
    "compiled": _compiled,
    "computing in bfloat16": lambda mesh: network(
        mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    ),
}


def _variant(mesh: DeviceMesh, model: nn.Module) -> tuple[str, float, float]:
    site, own = mesh.get_local_rank("site"), mesh.get_local_rank("rank")
    optimizer = DeMo(model.parameters(), process_group=mesh.get_group("site"), **BEST)
    losses = []
    for _ in range(8):
        loss = model(tokens_of(0, site, own))
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return f"{optimizer.fingerprint():016x}", losses[0], losses[-1]


def alone(rank: int) -> Any:
    """Whether one site of all ranks, which has nobody to exchange with, steps as one whole rank."""
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (1, ranks), mesh_dim_names=("site", "rank"))
    only_self = init_device_mesh("cpu", (ranks, 1), mesh_dim_names=("others", "self")).get_group("self")
    shapes: list[tuple[int, ...]] = [(150, 65), (100,), (7, 3, 3)]
    first = tensors(shapes, 0)
    whole, shards = [nn.Parameter(tensor.clone()) for tensor in first], sharded(first, mesh)
    optimizers = DeMo(whole, process_group=only_self, **BEST), DeMo(shards, **BEST)
    for step in range(STEPS):
        for ours, optimizer in zip((whole, shards), optimizers, strict=True):
            give(ours, tensors(shapes, step))
            optimizer.step()
    equal = all(torch.equal(a, full(b.data)) for a, b in zip(whole, shards, strict=True))
    return equal, optimizers[0].fingerprint() == optimizers[1].fingerprint(), optimizers[1].bytes_sent


def refused(rank: int) -> Any:
    """The errors of DeMo with parameters or groups that cannot be, by what is wrong with them."""
    mesh, everybody = mesh_of_sites(), init_device_mesh("cpu", (dist.get_world_size(),))
    first = tensors([(8, 8), (8, 8)], 0)
    between, of_others = mesh.get_group("site"), [dist.new_group([0]), dist.new_group([1])][rank == 0]
    found = {
        name: refusal_of(lambda: DeMo(shard(matrices(), everybody).parameters()))  # noqa: B023 - at once
        for name, shard in SHARDED.items()
        if name != "FSDP2"
    }
    wrong: dict[str, Callable[[], object]] = {
        "HSDP": lambda: DeMo(_fully_sharded(mesh).parameters()),
        "columns": lambda: DeMo([nn.Parameter(distribute_tensor(first[0], mesh["rank"], [Shard(1)]))]),
        "one of two": lambda: DeMo([*sharded(first[:1], mesh), nn.Parameter(first[1])], process_group=between),
        "no group": lambda: DeMo(sharded(first, mesh)),
        "a group with this site's ranks": lambda: DeMo(sharded(first, mesh), process_group=dist.group.WORLD),
        "floats": lambda: DeMo(sharded(first, mesh), process_group=between, values="float"),
        "sharded later": lambda: _sharded_later(mesh, rank),
        "not in the group": lambda: DeMo(matrices().parameters(), process_group=of_others),
        "another model sharded": lambda: _another_sharded(mesh),
    }
    return found | {name: refusal_of(make) for name, make in wrong.items()}


def _fully_sharded(mesh: DeviceMesh) -> nn.Module:
    model = matrices()
    fully_shard(model, mesh=mesh)
    return model


def _sharded_later(mesh: DeviceMesh, rank: int) -> None:
    model = matrices()
    optimizer = DeMo(model.parameters())
    fully_shard(model, mesh=mesh["rank"])
    model(torch.ones(1, 64)).sum().backward()
    optimizer.step()


def _another_sharded(mesh: DeviceMesh) -> None:
    """A first step without a gradient, beside a model of the same shapes that was sharded and has gradients."""
    _fully_sharded(mesh["rank"])(torch.ones(1, 64)).sum().backward()
    model = matrices()
    DeMo(model.parameters()).step()


def at_odds(rank: int) -> Any:
    """What the ranks are told that differ in one thing, and whether they go on once they agree."""
    mesh = mesh_of_sites()
    site, between = mesh.get_local_rank("site"), mesh.get_group("site")
    shapes: list[tuple[int, ...]] = [(100, 65), (30,)]
    last = rank == dist.get_world_size() - 1

    def optimizer_of(group: dist.ProcessGroup = between, **settings: Any) -> DeMo:
        return DeMo(sharded(tensors(shapes, 0), mesh), process_group=group, **BEST | settings)

    errors = {}
    one_rank = optimizer_of(compression_topk=5 if last else 32)
    errors["a setting of one rank"] = refusal_of(one_rank.step)
    errors["a setting of one site"] = refusal_of(optimizer_of(compression_topk=5 + site).step)
    changed = optimizer_of()
    if last:  # one site's ranks differ from the other's in one shard
        changed.param_groups[0]["params"][0].data.to_local()[0] += 1
    errors["a number of one rank"] = refusal_of(changed.step)
    crossed = [dist.new_group(pair) for pair in ((0, 3), (1, 2))][rank in (1, 2)]
    errors["groups of different shards"] = refusal_of(optimizer_of(crossed).step)
    rate = optimizer_of(lr=0.02 if last else 0.01)
    errors["the rate of one rank"] = refusal_of(rate.step)
    rate.param_groups[0]["lr"] = 0.01
    errors["no rate"] = refusal_of(rate.step)
    return errors, rate.fingerprint()


def gossiped(rank: int) -> Any:
    """By codec: how far the sites' shards are from whole ranks that gossip with the mean gradients of two, and the
    distance of the sites before and after they are averaged. And the error of a site that has nobody to gossip with."""
    mesh = mesh_of_sites()
    everybody = init_device_mesh("cpu", (dist.get_world_size(),))
    found: dict[str, Any] = {codec: _gossiped(mesh, codec) for codec in ("dense", "sign")}
    alone = matrices()
    fully_shard(alone, mesh=everybody)
    found["alone"] = refusal_of(lambda: Gossip(alone, torch.optim.AdamW(alone.parameters())))
    return found


def _gossiped(mesh: DeviceMesh, codec: str) -> dict[str, float]:
    site, own, between = mesh.get_local_rank("site"), mesh.get_local_rank("rank"), mesh.get_group("site")
    models = network(), network(mesh)
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False) for model in models]
    gossips = [
        Gossip(model, optimizer, topology="ring", codec=codec, process_group=between)
        for model, optimizer in zip(models, optimizers, strict=True)
    ]
    whole, shards = models
    for step in range(STEPS):
        shards(tokens_of(step, site, own)).backward()
        for other in range(2):
            (whole(tokens_of(step, site, other)) / 2).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    pairs = [(a.detach(), full(b.data)) for a, b in zip(whole.parameters(), shards.parameters(), strict=True)]
    farthest = max(float((a - b).abs().max()) for a, b in pairs)
    apart = [_apart(shards, between)]
    state = gossips[1].state_dict()["settings"]["shard"]
    gossips[1].average()
    apart.append(_apart(shards, between))
    for gossip in gossips:
        gossip.finish()
    return {"farthest": farthest, "apart": apart[0], "averaged": apart[1], "shard": state}


def _apart(model: nn.Module, between: dist.ProcessGroup) -> float:
    """Largest difference between the sites' shards at this rank's place."""
    largest = 0.0
    for parameter in model.parameters():
        held = full_of_rank(parameter)
        both = [torch.empty_like(held) for _ in range(SITES)]
        dist.all_gather(both, held, group=between)
        largest = max([largest, *(both[0] - both[1]).abs().view(-1).tolist()])
    return largest


def full_of_rank(parameter: nn.Parameter) -> Tensor:
    assert isinstance(parameter.data, DTensor)
    return parameter.data.to_local().clone()


SCENES: tuple[Callable[[int], Any], ...] = (drawn, trained, variants, alone, at_odds, refused, gossiped)
