"""Tests a model that ranks divide, beside one process with the whole, with real processes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from star.site.test_ranks import played
from support.live_tensors import LiveTensors
from support.private_memory import private_memory
from support.small import CPU, random_replica, random_votes, small_contract, small_corpus
from thinwire_node.star.site.follower import Follower
from thinwire_node.star.site.leader import LeaderTrainer, ShardedLeaderReplica
from thinwire_node.star.site.sharded_compute import ShardedCompute
from thinwire_node.star.site.shares import Shares
from thinwire_node.star.trainer import Trainer
from thinwire_node.training.checkpoints import StageCall
from thinwire_node.training.compute import TorchCompute
from thinwire_node.training.failures import Interrupted, NotFinite, OutOfMemory
from thinwire_node.training.micro_batch import MicroBatch
from thinwire_node.training.ranks import Ranks
from thinwire_proto.contract import Contract, Parameter
from thinwire_proto.data.text import CorpusText
from thinwire_proto.exact.mapped import MappedTensors
from thinwire_proto.exact.replica import Replica, load_replica
from thinwire_proto.exact.tensor_files import save_tensors
from thinwire_proto.exact.tiles import TileLayout, layout_of
from thinwire_proto.exact.update import Update
from thinwire_proto.exact.votes import merge
from thinwire_proto.task import Batch, task_of

SAMPLES = 5
CONTEXT = 32
MODELS: dict[str, dict[str, Any]] = {"decoder": {}, "tied": {"tied": True}, "llama": {"kind": "llama", "kv_heads": 1}}


def contract_of(**model: Any) -> Contract:
    sizes = {"width": 96, "layers": 3, "heads": 2, "hidden": 160, "context": CONTEXT}
    spec = Contract.model_validate(small_contract().model_dump() | {"model": sizes | model}).model
    return small_contract().model_copy(update={"model": spec, "parameters": task_of(spec).manifest()})


def batch_of(samples: int) -> Batch:
    return (torch.randint(0, 256, (samples, CONTEXT + 1), generator=torch.Generator().manual_seed(1)),)


def share_of(ranks: Ranks, batch: Batch) -> tuple[Batch, int]:
    """A rank's samples, or one that does not count, and their number."""
    count = len(batch[0][ranks.rank :: ranks.size])
    return tuple(tensor[ranks.rank :: ranks.size] if count else tensor[:1] for tensor in batch), count


class Divided:
    """A rank with its range of random parameters."""

    def __init__(self, ranks: Ranks, task: Any, layout: TileLayout, whole: dict[str, Tensor]) -> None:
        self.shares = Shares(layout, ranks)
        own = self.shares.own
        self.pieces = own.layout.unflattened(own.cut(whole))
        self.sums = own.layout.unflattened(torch.zeros(own.layout.parameters))
        self.compute = ShardedCompute(task, CPU, self.shares)
        self.compute.use(self.pieces)

    def add(self, batch: Batch) -> float:
        share, count = share_of(self.shares.ranks, batch)
        loss = self.compute.add_gradients(share, self.sums, count)
        total = torch.tensor([float(loss) * count])
        self.shares.ranks.add_up(total)
        return float(total) / len(batch[0])


def of_contract(ranks: Ranks, contract: Contract) -> Divided:
    replica = random_replica(contract)
    return Divided(ranks, task_of(contract.model), replica.layout, replica.tensors)


def differences(found: Divided, task: Any, whole: dict[str, Tensor], batch: Batch) -> tuple[float, float]:
    """How much loss and gradient differ from those of one process with the whole model."""
    compute, sums = TorchCompute(task, CPU), {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    compute.use(whole)
    loss = float(compute.add_gradients(batch, sums, len(batch[0])))
    own = found.shares.own
    expected = own.layout.unflattened(own.cut(sums))
    sharded = found.add(batch)
    worst = max(
        (float((found.sums[name] - one).abs().max() / one.abs().max()) for name, one in expected.items()), default=0.0
    )
    return abs(sharded - loss), worst


def beside_the_whole(ranks: Ranks, *, contract: Contract, samples: int) -> tuple[float, float]:
    whole = random_replica(contract).tensors
    return differences(of_contract(ranks, contract), task_of(contract.model), whole, batch_of(samples))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
@pytest.mark.parametrize(("ranks", "samples"), [(2, SAMPLES), (4, 3)])
def test_gradients_are_those_of_the_whole_model(tmp_path: Path, model: Any, ranks: int, samples: int) -> None:
    """With four ranks and three samples, one has none."""
    found = played(tmp_path, partial(beside_the_whole, contract=contract_of(**model), samples=samples), ranks)
    assert len(found) == ranks
    for loss, gradient in found.values():
        assert loss < 1e-5
        assert gradient < 1e-5


class Knot(nn.Module):
    """A model without anything before its stages, whose stages share a matrix with each other and with its end."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(70, 70, bias=number > 0) for number in range(3))
        self.blocks[2].weight = self.blocks[0].weight
        self.end = nn.Linear(70, 70)
        self.end.weight = self.blocks[0].weight  # type: ignore[assignment]

    def stages(self) -> Iterable[nn.Module]:
        return self.blocks

    def loss(self, values: Tensor) -> Tensor:
        found = values
        for block in self.blocks:
            found = torch.tanh(block(found))
        loss: Tensor = self.end(found).square().mean()
        return loss


class KnotTask:
    def model(self, device: torch.device | str, blobs: Any = None) -> Knot:
        with torch.device(device):  # `to` would give each place a matrix of its own
            return Knot()


def knotted(ranks: Ranks) -> tuple[float, float]:
    torch.manual_seed(0)
    whole = {name: one.detach().clone() for name, one in Knot().named_parameters()}
    layout = layout_of(tuple(Parameter(name=name, shape=tuple(one.shape)) for name, one in whole.items()))
    task: Any = KnotTask()
    return differences(Divided(ranks, task, layout, whole), task, whole, (torch.randn(4, 70),))


def test_a_matrix_may_be_shared_by_stages(tmp_path: Path) -> None:
    for loss, gradient in played(tmp_path, knotted, 2).values():
        assert loss < 1e-5
        assert gradient < 1e-5


def failing(ranks: Ranks) -> list[Any]:
    """One rank fails once at each place where it computes. The others must not wait for it, and nothing is added."""
    divided, batch = of_contract(ranks, contract_of()), batch_of(SAMPLES)
    outputs, seen = StageCall.outputs, []
    for fails_at in range(1, 2 * 3 + 2):
        calls = 0

        def fail(call: StageCall, *given: Any) -> Any:
            nonlocal calls
            calls += 1
            if ranks.rank == 1 and calls == fails_at:  # noqa: B023 - it is called within this turn
                raise MemoryError("enough")
            return outputs(call, *given)

        with patch.object(StageCall, "outputs", fail):
            try:
                divided.add(batch)
            except OutOfMemory:
                seen.append("out of memory")
                assert not any(total.any() for total in divided.sums.values())
            else:
                seen.append("trained")
    return seen


def test_all_fail_at_the_same_place_and_go_on(tmp_path: Path) -> None:
    assert played(tmp_path, failing, 3) == dict.fromkeys(range(3), ["out of memory"] * 6 + ["trained"])


def spoilt(ranks: Ranks) -> list[str]:
    divided, batch, seen = of_contract(ranks, contract_of()), batch_of(SAMPLES), []

    def tried(name: str) -> None:
        try:
            divided.add(batch)
        except (NotFinite, Interrupted) as error:
            seen.append(f"{name}: {type(error).__name__}, spoils: {error.spoils}")
        else:
            seen.append(f"{name}: trained")

    if ranks.rank == 1:
        value = next(iter(divided.pieces.values())).view(-1)
        kept = float(value[0])
        value[0] = math.nan
    tried("not a number")
    if ranks.rank == 1:
        value[0] = kept
    divided.compute.interrupt()
    tried("interrupted")
    divided.compute.resume()
    tried("resumed")
    return seen


def test_what_one_rank_finds_ends_the_pass_of_all(tmp_path: Path) -> None:
    expected = ["not a number: NotFinite, spoils: False", "interrupted: Interrupted, spoils: False", "resumed: trained"]
    assert played(tmp_path, spoilt, 2) == {0: expected, 1: expected}


def leading(ranks: Ranks, *, folder: Path) -> list[float]:
    """The held-out losses of parameters that were kept and of the newest ones, of the shards and of the whole model.
    One sample fits into a pass, and each rank has up to two: the ranks must divide them alike."""
    contract = small_contract(model=contract_of().model.model_dump())
    if ranks.rank:
        Follower(ranks, CPU).run()
        return []
    replica = random_replica(contract)
    data, shares = CorpusText(small_corpus(), contract), Shares(replica.layout, ranks)
    led, task = ShardedLeaderReplica(replica, shares, CPU), task_of(contract.model)
    trainer = LeaderTrainer(contract, data, led, ShardedCompute(task, CPU, shares, MicroBatch(1)), folder)
    (name,) = (one.name for one in data.held_out_sets())
    batch, compute = data.held_out(name, range(5)), TorchCompute(task, CPU)
    found = [trainer.held_out_loss(led.tensors, name, range(5)), compute.loss(replica.tensors, batch)]
    kept, update = led.copied(), update_of(replica)
    for one in (led, replica):
        one.apply(update, b"")
    found += [trainer.held_out_loss(led.tensors, name, range(5)), compute.loss(replica.tensors, batch)]
    return [*found, trainer.held_out_loss(kept, name, range(5))]


def test_held_out_losses_are_those_of_the_whole_model(tmp_path: Path) -> None:
    first, expected_first, newest, expected, of_kept = played(tmp_path, partial(leading, folder=tmp_path), 3)[0]
    assert first == pytest.approx(expected_first, rel=1e-5)
    assert newest == pytest.approx(expected, rel=1e-5)
    assert of_kept == first != newest


def update_of(replica: Replica) -> Update:
    votes = [(random_votes(replica.layout, 8, seed), 1) for seed in range(3)]
    return Update(replica.step, 0.01, 0.999, merge(votes, replica.layout.components))


def stepping(ranks: Ranks, *, kind: str, sizes: dict[str, int]) -> Any:
    """How far a first moment and an offset of a range are from those of one process after the same micro-batches, as a
    part of their norms, and the counts and losses of both. With three ranks and four samples, one has two samples."""
    contract = small_contract(model=contract_of(**sizes).model.model_dump(), rule={"kind": kind, "micro_batch": 4})
    if ranks.rank:
        Follower(ranks, CPU).run()
        return None
    shares, data = Shares(layout_of(contract.parameters), ranks, contract.rule), CorpusText(small_corpus(), contract)
    task, own = task_of(contract.model), shares.own
    led = ShardedLeaderReplica(random_replica(contract), shares, CPU)
    together = LeaderTrainer(contract, data, led, ShardedCompute(task, CPU, shares), Path())
    alone = Trainer(contract, data, random_replica(contract), TorchCompute(task, CPU))
    for first in (0, 4, 8):
        together.micro_batch(range(first, first + 4))
        alone.micro_batch(range(first, first + 4))
    rule = together._rank.trainer.rule
    assert rule.offset is not None
    assert alone.rule.offset is not None
    pairs = [(rule.state()["first"], shares.cut_state("first", alone.rule.state()["first"], 0))]
    pairs += [(torch.cat([one.reshape(-1) for one in rule.offset.values()]), own.cut(alone.rule.offset))]
    differ = [float((found - expected).norm() / expected.norm()) for found, expected in pairs]
    unmoved = all(
        torch.equal(one, two)
        for one, two in zip(
            led.tensors.values(),
            own.layout.unflattened(own.cut(random_replica(contract).tensors)).values(),
            strict=True,
        )
    )
    (sent, *of_all), (sent_alone, *of_one) = together.extract(8), alone.extract(8)
    of_all, of_one = (
        [*counts, float(one.values.abs().sum())] for counts, one in ((of_all, sent), (of_one, sent_alone))
    )
    return differ, unmoved, of_all, of_one, bool(torch.stack([one.any() for one in rule.offset.values()]).any())


A_RANK_WITHOUT_A_TILE = {"width": 64, "layers": 1, "hidden": 256}
"""Of six, where matrices are undivided."""


@pytest.mark.parametrize(
    ("kind", "ranks", "sizes"),
    [("local_adamw", 3, {}), ("local_muon", 3, {}), ("local_muon", 6, A_RANK_WITHOUT_A_TILE)],
)
def test_local_steps_of_ranges_are_those_of_one_process(
    tmp_path: Path, kind: str, ranks: int, sizes: dict[str, int]
) -> None:
    found = played(tmp_path, partial(stepping, kind=kind, sizes=sizes), ranks)[0]
    differ, unmoved, (samples, loss, size), (expected, expected_loss, expected_size), has_offset = found
    assert differ[0] < 1e-3
    assert differ[1] < 0.02  # where a gradient is almost 0, its rounding decides the direction of the first step
    assert unmoved
    assert samples == expected == 12
    assert loss == pytest.approx(expected_loss, rel=1e-4)
    assert size == pytest.approx(expected_size, rel=0.01)
    assert not has_offset


def saving(ranks: Ranks, *, contract: Contract, folder: Path) -> Any:
    """A replica and a momentum that were read from files, handed out, trained, and saved again; those of one process;
    and how much more memory each of it took the leader than it had before, as a part of the whole parameters."""
    if ranks.rank:
        Follower(ranks, CPU).run()
        return None
    replica, first = random_replica(contract), folder / "first.safetensors"
    replica.save(first)
    data, shares = CorpusText(small_corpus(), contract), Shares(replica.layout, ranks)
    seen = {}
    with private_memory() as seen["take up"]:
        led = ShardedLeaderReplica(load_replica(contract, first, is_mapped=True), shares, CPU)
        trainer = LeaderTrainer(contract, data, led, ShardedCompute(task_of(contract.model), CPU, shares), folder)
    update = update_of(replica)
    fingerprints = [(led.fingerprint(7), replica.fingerprint(7))]
    for one in (led, replica):
        one.apply(update, bytes(32))
    fingerprints += [(led.model_fingerprint(), replica.model_fingerprint())]
    with private_memory() as seen["save"]:
        led.save(folder / "saved.safetensors")
    momentum = {name: torch.randn(tensor.shape) for name, tensor in trainer.rule.state().items()}
    save_tensors(momentum, folder / "momentum", {})
    del momentum
    with private_memory() as seen["load momentum"]:
        trainer.rule.load(MappedTensors(folder / "momentum").tensors)
    with private_memory() as seen["save momentum"]:
        save_tensors(trainer.rule.state(), folder / "again", {})
    whole = 4 * replica.layout.parameters
    saved, again = load_replica(contract, folder / "saved.safetensors"), (folder / "again").read_bytes()
    is_equal = saved.state_hash() == replica.state_hash() and again == (folder / "momentum").read_bytes()
    left = [path.name for path in folder.iterdir() if path.name.startswith(".tmp")]
    return fingerprints, is_equal, left, {name: (peak.extra_bytes / whole) for name, peak in seen.items()}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's count of private memory")
def test_the_leader_takes_up_and_saves_what_it_never_holds_whole(tmp_path: Path) -> None:
    contract = contract_of(width=512, layers=8, hidden=2048)
    fingerprints, is_equal, left, extra = played(tmp_path, partial(saving, contract=contract, folder=tmp_path), 4)[0]
    assert all(found == expected for found, expected in fingerprints)
    assert is_equal
    assert not left
    # a rank holds a quarter of the parameters, of their sums, of the momentum and of the second moment
    for name, most in {"take up": 1.1, "save": 0.4, "load momentum": 0.6, "save momentum": 0.6}.items():
        assert extra[name] < most, extra


def remembering(ranks: Ranks, *, contract: Contract) -> tuple[int, int]:
    """The most bytes of tensors that a pass reads or makes, and the parameters of the own range."""
    divided, batch = of_contract(ranks, contract), batch_of(1)
    with LiveTensors() as live:
        divided.add(batch)
    return live.peak_bytes, divided.shares.own.layout.parameters


def test_a_pass_takes_the_memory_of_its_range_and_of_a_layer(tmp_path: Path) -> None:
    contract = contract_of(width=256, layers=12, hidden=1024)
    sizes = {one.name: math.prod(one.shape) for one in contract.parameters}
    layer = sum(size for name, size in sizes.items() if name.startswith("blocks.0."))
    outside = sum(size for name, size in sizes.items() if not name.startswith("blocks."))
    for peak, own in played(tmp_path, partial(remembering, contract=contract), 4).values():
        assert own < sum(sizes.values()) / 4 + 4096
        # parameters, sums and gradient of the range; what is whole at a time, its gradient, and either on its way
        assert peak < 4 * (3 * own + 3 * (layer + outside)) + 1_000_000
        assert peak < 4 * 1.1 * sum(sizes.values())  # which is less than parameters and gradient of the whole model
