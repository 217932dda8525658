"""The forecast of a model's memory beside what a pass takes, and the bits of a base that a node chooses by it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from support.adapters import base_folder, made
from thinwire_node.resources import Room, cards_that_train, check_contract, measured_needs
from thinwire_node.training.compute import TorchCompute
from thinwire_node.training.micro_batch import MicroBatch
from thinwire_proto.contract import Contract
from thinwire_proto.contract.trained import Trained
from thinwire_proto.errors import LocalError
from thinwire_proto.exact.tiles import layout_of
from thinwire_proto.model_memory import memory_of
from thinwire_proto.needs import PROGRAM_BYTES
from thinwire_proto.pass_memory import CARDS, Activations, ModelMemory, Pass, card_words

GB = 10**9
SAMPLES = 4


def config_of(width: int, layers: int, vocabulary: int) -> dict[str, Any]:
    """A Llama as wide and deep, in the proportions of the one with 7B parameters."""
    heads = {"num_attention_heads": width // 64, "num_key_value_heads": width // 64}
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 64 * round(width * 2.7 / 64)}
    return {"model_type": "llama", "vocab_size": vocabulary, "max_position_embeddings": 512} | heads | sizes


def allocated_bytes_max(work: Callable[[], object]) -> int:
    """The most bytes that torch's allocator for the CPU holds during `work`, beside what it held before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        work()
    held = most = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


@pytest.mark.parametrize(("width", "layers", "vocabulary", "context"), [(256, 4, 4096, 256), (512, 4, 32_000, 128)])
def test_the_forecast_is_within_a_tenth_of_what_a_pass_takes(
    width: int, layers: int, vocabulary: int, context: int, tmp_path: Path
) -> None:
    base = base_folder(tmp_path / "base", config=config_of(width, layers, vocabulary), scale=1)
    task, contract, blobs = made(base, tmp_path / "blobs", context=context)
    first, found = task.initial_state(1), {}
    adapter = sum(tensor.nbytes for tensor in first.values())
    for bits in task.base_bits:
        compute = TorchCompute(task.in_bits(bits), torch.device("cpu"), blobs)
        compute.use(first)
        model: Any = compute._model.model
        frozen = sum(tensor.nbytes for _, tensor in model.named_parameters() if not tensor.requires_grad)
        held = frozen + sum(buffer.nbytes for buffer in model.buffers()) + 2 * adapter
        memory = memory_of(contract.model, bits)
        for samples, checkpoints in ((1, False), (SAMPLES, False), (1, True), (SAMPLES, True)):
            compute.micro_batch = MicroBatch(samples, checkpoints=checkpoints)
            tokens = torch.randint(0, vocabulary, (samples, context + 1))
            sums = {name: torch.zeros_like(tensor) for name, tensor in first.items()}
            compute.add_gradients((tokens,), sums, 1)
            measured = held + allocated_bytes_max(partial(compute.add_gradients, (tokens,), sums, 1))
            of_pass = memory.activations.peak(samples, checkpoints=checkpoints, decoding=memory.decoding)
            found[bits, samples, checkpoints] = (memory.frozen + of_pass + 2 * adapter) / measured
    assert all(0.9 < ratio < 1.1 for ratio in found.values()), found


def test_a_node_chooses_the_most_bits_that_fit(tmp_path: Path) -> None:
    task, contract, _ = made(base_folder(tmp_path / "base"), tmp_path / "blobs")
    for bits in task.base_bits:
        needs = measured_needs(contract, bits)
        held = PROGRAM_BYTES + needs.data + needs.trained + max(needs.model.frozen, needs.model.loading)
        room = Room(held + needs.model.least, "--max-memory", 20 * GB, "")
        chosen, fits = check_contract(contract, room, SAMPLES)
        assert (chosen.model.bits, fits) == (bits, Pass(1, True))
    with pytest.raises(LocalError, match=r"a base of 4 bits \d.*, one sample with checkpoints .*--max-memory"):
        check_contract(contract, Room(held, "--max-memory", 20 * GB, ""), SAMPLES)
    room = Room(8 * GB, "--max-memory", 20 * GB, "")
    assert check_contract(contract, room, SAMPLES)[0].model.bits == 32
    assert check_contract(contract, room, SAMPLES, base_bits=8)[0].model.bits == 8


def test_a_base_of_16_bits_has_no_more(tmp_path: Path) -> None:
    task, contract, _ = made(base_folder(tmp_path / "base", torch.bfloat16), tmp_path / "blobs")
    assert task.base_bits == (16, 8, 4)
    assert "12 GB: a base of 16 bits, 8 samples of 48 tokens at once" in cards_that_train(contract)


def contract_with(samples: int, tmp_path: Path) -> Contract:
    _, contract, _ = made(base_folder(tmp_path / "base"), tmp_path / "blobs")
    return contract.model_copy(update={"round": contract.round.model_copy(update={"samples": samples})})


def test_cards_are_named_with_what_they_can_do(tmp_path: Path) -> None:
    contract = contract_with(64, tmp_path)
    of_pass = Activations(whole=30 * GB, checkpointed=2 * GB, stage=GB, loss=GB)
    memories = [ModelMemory(bits, int(bits * GB), of_pass) for bits in (16, 8, 4)]
    layout = layout_of(contract.parameters)
    size = Trained(layout.parameters, layout.matrix_tiles, layout.vector_tiles)
    assert card_words(contract, size, memories) == {
        "12 GB": "a base of 8 bits, 1 sample of 48 tokens at once, with checkpoints",
        "16 GB": "a base of 8 bits, 3 samples of 48 tokens at once, with checkpoints",
        "24 GB": "a base of 16 bits, 3 samples of 48 tokens at once, with checkpoints",
    }
    assert card_words(contract, size, [ModelMemory(4, CARDS[0], of_pass)])["12 GB"] == "too small"
    assert not card_words(contract, size, [ModelMemory(4, GB)])
