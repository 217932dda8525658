"""Momentum and moments in the machine's memory while gradients are on a card that is too small for both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from support.emulated_card import OnCard, emulated_card
from support.small import shapes_contract, small_contract
from thinwire.compression.sent import Sent
from thinwire_node.resources import GPU_PROGRAM_BYTES, Room, check_needs, measured_needs
from thinwire_node.star.rules import make_rule
from thinwire_proto.contract import Contract
from thinwire_proto.errors import LocalError
from thinwire_proto.exact.tiles import Batch, layout_of
from thinwire_proto.pass_memory import Pass

CPU = torch.device("cpu")
SECTIONS: dict[str, dict[str, Any]] = {
    "demo": {},
    "demo with magnitudes": {"demo": {"magnitude": "tile", "precondition": "none"}},
    "merged_muon": {"rule": {"kind": "merged_muon"}},
    "local_adamw": {"rule": {"kind": "local_adamw"}},
    "local_muon": {"rule": {"kind": "local_muon"}},
}
ROUNDS, RATE, GB = 3, 0.01, 1_000_000_000


def drawn(contract: Contract, seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {one.name: torch.randn(one.shape, generator=generator) for one in contract.parameters}


def learned(contract: Contract, device: torch.device, moments_on: torch.device) -> dict[str, Tensor]:
    """Everything that a rule sends, changes and keeps in a few rounds, on the CPU."""
    rule = make_rule(contract, layout_of(contract.parameters), device, moments_on)
    parameters = {name: tensor.to(device) for name, tensor in drawn(contract, 0).items()}
    found: dict[str, Tensor] = {}

    def keep(batch: Batch, change: Tensor) -> None:
        found[f"{number} change {batch.is_matrix} {batch.tiles.start}"] = change.cpu().clone()

    for number in range(ROUNDS):
        for seed in (1, 2):
            gradients = {name: tensor.to(device) for name, tensor in drawn(contract, 10 * number + seed).items()}
            if rule.sums is not None:
                for name, total in rule.sums.items():
                    total.add_(gradients[name], alpha=2)
            rule.learn(parameters, gradients if rule.sums is None else None, 2, RATE)
        sent: Sent = rule.extract(8, RATE)
        rule.decode_changes(keep, sent, RATE)
        if number == 1:
            rule.put_back(sent)
        found |= {f"{number} votes": torch.from_numpy(sent.votes().components), f"{number} values": sent.values.cpu()}
    found |= {f"state {name}": tensor for name, tensor in rule.state().items()}
    found |= {f"parameter {name}": tensor.cpu() for name, tensor in parameters.items()}
    for kind, tensors in (("sum", rule.sums), ("offset", rule.offset)):
        assert all(isinstance(tensor, OnCard) == (device != CPU) for tensor in (tensors or {}).values())
        found |= {f"{kind} {name}": tensor.cpu() for name, tensor in (tensors or {}).items()}
    return found


@pytest.mark.parametrize("name", SECTIONS)
def test_what_is_learned_beside_a_card_has_the_bits_of_a_machine_without_one(name: str) -> None:
    contract = shapes_contract(**SECTIONS[name])
    expected = learned(contract, CPU, CPU)
    with emulated_card() as card:
        found = learned(contract, card, CPU)
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert not isinstance(found[key], OnCard), key
        assert torch.equal(found[key], tensor), key


def test_they_leave_a_card_that_has_no_room_for_them_even_with_checkpoints() -> None:
    contract = small_contract(model={"width": 128, "layers": 4, "heads": 2, "hidden": 512, "context": 256})
    needs = measured_needs(contract)
    large = needs.trained + needs.model.activations.peak(1, checkpoints=True)
    small = needs.trained - needs.moments + needs.model.activations.peak(1, checkpoints=True)
    room = Room(8 * GB, "--max-memory", 20 * GB, "", device_bytes=large)
    assert check_needs(contract, needs, room, 2) == Pass(1, checkpoints=True)
    beside = replace(room, device_bytes=large - 1)
    assert check_needs(contract, needs, beside, 2).moments_on_host
    assert check_needs(contract, needs, replace(room, device_bytes=small), 2) == Pass(1, True, moments_on_host=True)
    with pytest.raises(LocalError, match=r"of the GPU's memory \(parameters and gradients .*one sample with checkp"):
        check_needs(contract, needs, replace(room, device_bytes=small - 1), 2)
    # a node of several processes divides them, and this machine needs room for them
    with pytest.raises(LocalError, match=r"of the GPU's memory \(parameters and momentum "):
        check_needs(contract, needs, replace(beside, of_several=True), 2)
    held = GPU_PROGRAM_BYTES + needs.data + needs.trained // 2 + needs.model.frozen
    with pytest.raises(LocalError, match=r"of memory \(.*momentum and moments "):
        check_needs(contract, needs, replace(beside, memory_bytes=held), 2)
    assert check_needs(contract, needs, replace(room, memory_bytes=held), 2) == Pass(1, checkpoints=True)


@pytest.mark.parametrize(("name", "each"), [("demo", 8), ("merged_muon", 4), ("local_adamw", 12), ("local_muon", 16)])
def test_the_bytes_that_can_move_are_those_of_the_saved_tensors(name: str, each: int) -> None:
    contract = small_contract(**SECTIONS[name], model={"width": 128, "layers": 1, "heads": 2, "hidden": 128})
    layout = layout_of(contract.parameters)
    rule = make_rule(contract, layout, "meta")
    kept = sum(tensor.nbytes for tensor in rule.state().values())
    moments = measured_needs(contract).moments
    assert kept <= moments + 64
    assert each * layout.parameters <= moments <= each * layout.parameters * 1.1


class CopiesRunOut(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets the first of each `every` copies between card and host fail. failed: how many."""

    def __init__(self, every: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.every = every
        self.copies = self.failed = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            self.copies += 1
            if self.copies % self.every == 1:
                self.failed += 1
                raise torch.OutOfMemoryError("there is no room for the copy")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["local_adamw", "local_muon"])
def test_copies_that_run_out_of_memory_leave_no_step_half_taken(name: str) -> None:
    contract = shapes_contract(**SECTIONS[name])
    layout = layout_of(contract.parameters)
    alone = make_rule(contract, layout, CPU)
    expected = drawn(contract, 0)
    alone.learn(expected, drawn(contract, 1), 2, RATE)
    alone.extract(8, RATE)
    with emulated_card() as card:
        rule = make_rule(contract, layout, card, CPU)
        found, gradients = ({key: one.to(card) for key, one in drawn(contract, seed).items()} for seed in (0, 1))
        with CopiesRunOut(3) as of_learning:
            rule.learn(found, gradients, 2, RATE)
        with CopiesRunOut(1000) as of_extracting:
            rule.extract(8, RATE)
        assert of_learning.failed > 2
        assert of_extracting.failed == 1
        assert all(torch.equal(found[key].cpu(), tensor) for key, tensor in expected.items())
    assert all(torch.equal(rule.state()[key], tensor) for key, tensor in alone.state().items())
