"""Preferences: loss and gradients are those of trl's DPO, and a pair is never divided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from support.adapters import CONFIG, base_folder, made
from thinwire_node.training.compute import TorchCompute
from thinwire_node.training.micro_batch import MicroBatch
from thinwire_proto.blobs import BlobFolder
from thinwire_proto.contract.models.lora import LoraSpec
from thinwire_proto.data.conversations import BEGINS, CHOSEN, COUNTS, counted_of, preferred_by, weight_of
from thinwire_proto.data.manifest import Conversations
from thinwire_proto.models.lora import LoraTask
from thinwire_proto.stateless import Stateless

VOCABULARY, CONTEXT, BETA = 96, 40, 0.3
PAIRS = [(5, 4, 7), (3, 6, 2), (6, 1, 3), (9, 8, 8), (2, 2, 5)]
"""Of each pair: tokens of the prompt, of the chosen and of the rejected response."""
ROWS = [[0, 1], [2], [3], [4]]
TOLERANCES = {None: 1e-5, 16: 0.05, 4: 0.05}
"""Relative. With 16 bits and less, the passes of single rows round differently."""
Pair = tuple[Tensor, Tensor, Tensor]
Found = tuple[float, dict[str, Tensor]]


def pairs() -> list[Pair]:
    generator = torch.Generator().manual_seed(7)
    return [
        tuple(torch.randint(1, VOCABULARY, (length,), generator=generator) for length in each)  # type: ignore[misc]
        for each in PAIRS
    ]


def packed() -> list[list[Pair]]:
    every = pairs()
    return [[every[number] for number in row] for row in ROWS]


def rows_of(rows: Sequence[Sequence[Pair]], context: int = CONTEXT) -> tuple[Tensor, Tensor]:
    """Rows of tokens and marks, as `prepare` packs them."""
    tokens = torch.zeros(len(rows), context + 1, dtype=torch.int64)
    marks = torch.zeros(len(rows), context + 1, dtype=torch.uint8)
    for row, found in enumerate(rows):
        at = 0
        for prompt, *responses in found:
            for response, bits in zip(responses, (BEGINS | CHOSEN, BEGINS), strict=True):
                end = at + len(prompt) + len(response)
                tokens[row, at:end] = torch.cat([prompt, response])
                marks[row, at], marks[row, end - len(response) : end] = bits, COUNTS
                at = end
        if at <= context:
            marks[row, at] = BEGINS
    return tokens, marks


@pytest.fixture
def adapted(tmp_path: Path) -> tuple[LoraTask, BlobFolder, dict[str, Tensor]]:
    """The task, its blobs, and an adapter that changes the base."""
    task, contract, blobs = made(base_folder(tmp_path / "base"), tmp_path / "blobs", context=CONTEXT, beta=BETA)
    assert isinstance(contract.model, LoraSpec)
    generator = torch.Generator().manual_seed(3)
    first = {one.name: torch.randn(one.shape, generator=generator) / 8 for one in task.manifest()}
    return task, blobs, first


def ours(adapted: tuple[LoraTask, BlobFolder, dict[str, Tensor]], batch: tuple[Tensor, ...]) -> Found:
    task, blobs, first = adapted
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in first.items()}
    loss = Stateless(task.model("cpu", blobs)).loss(leaves, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach()), {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def check_equal(one: Found, other: Found) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    assert one[1].keys() == other[1].keys()
    largest = max(float(gradient.abs().max()) for gradient in other[1].values())
    assert largest > 1e-3
    for name, gradient in other[1].items():
        assert (one[1][name] - gradient).abs().max() <= 1e-5 * max(1.0, largest), name


@pytest.mark.filterwarnings("ignore")
def test_loss_and_gradients_are_those_of_trl(
    adapted: tuple[LoraTask, BlobFolder, dict[str, Tensor]], tmp_path: Path
) -> None:
    trl = pytest.importorskip("trl", reason="pip install --no-deps trl accelerate")
    dpo = pytest.importorskip("trl.trainer.dpo_trainer", reason="pip install --no-deps trl accelerate")
    from datasets import Dataset  # noqa: PLC0415 - take seconds
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    task, blobs, first = adapted
    model = task.model("cpu", blobs)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in first:
                parameter.zero_()
    library = Tokenizer(models.WordLevel({f"{number}": number for number in range(VOCABULARY)}, unk_token="0"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = PreTrainedTokenizerFast(tokenizer_object=library, eos_token="0", pad_token="0")
    settings = trl.DPOConfig(
        output_dir=str(tmp_path / "trl"),
        beta=BETA,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    rows = [{"prompt": "1 2", "chosen": "3 4", "rejected": "5"}] * 2
    trainer = dpo.DPOTrainer(model.inner, args=settings, train_dataset=Dataset.from_list(rows), processing_class=words)
    with torch.no_grad():  # only now: trl's reference is the adapter as the trainer gets it
        for name, parameter in model.named_parameters():
            if name in first:
                parameter.copy_(first[name])
    examples = [
        dict(zip(("prompt_ids", "chosen_ids", "rejected_ids"), (each.tolist() for each in pair), strict=True))
        for pair in pairs()
    ]
    loss = trainer.compute_loss(trainer.model, dpo.DataCollatorForPreference(pad_token_id=0)(examples))
    loss.backward()
    gradients = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    check_equal(ours(adapted, rows_of(packed())), (float(loss.detach()), gradients))


def test_packed_pairs_learn_what_they_learn_alone_and_padded(
    adapted: tuple[LoraTask, BlobFolder, dict[str, Tensor]],
) -> None:
    together, alone = rows_of(packed()), rows_of([[each] for each in pairs()])
    padded = rows_of([[each] for each in pairs()], CONTEXT + 6)
    assert weight_of(*together) == weight_of(*alone) == weight_of(*padded) == len(PAIRS)
    found = ours(adapted, together)
    check_equal(found, ours(adapted, alone))
    check_equal(found, ours(adapted, padded))


def test_the_loss_of_an_adapter_that_changes_nothing_is_that_of_a_coin(
    adapted: tuple[LoraTask, BlobFolder, dict[str, Tensor]],
) -> None:
    task, blobs, _ = adapted
    model, first = Stateless(task.model("cpu", blobs)), task.initial_state(1)
    assert float(model.loss(first, rows_of(packed()))) == pytest.approx(np.log(2), abs=1e-6)


def test_the_reference_is_the_base_without_dropout_and_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    dropping = CONFIG | {"attention_dropout": 0.5}
    base = base_folder(tmp_path / "base", config=dropping)
    task, _, blobs = made(base, tmp_path / "blobs", context=CONTEXT, dropout=0.5)
    model = task.model("cpu", blobs)
    tokens, marks = rows_of(packed())
    modes = [module.training for module in model.modules()]
    with torch.no_grad(), model._base_alone():
        one, other = (model._logarithms(tokens, marks) for _ in range(2))
    assert torch.equal(one, other)
    assert [module.training for module in model.modules()] == modes
    assert all(modes)
    assert not any(layer.disable_adapters for layer in model.adapters)


@pytest.mark.parametrize("checkpoints", [False, True])
@pytest.mark.parametrize("bits", [None, 16, 4])
def test_pieces_of_a_batch_add_up_by_pairs(
    adapted: tuple[LoraTask, BlobFolder, dict[str, Tensor]], bits: int | None, checkpoints: bool
) -> None:
    task, blobs, first = adapted
    task, batch = task if bits is None else task.in_bits(bits), rows_of(packed())
    expected = ours((task, blobs, first), batch)
    compute = TorchCompute(task, torch.device("cpu"), blobs, MicroBatch(1, checkpoints=checkpoints))
    compute.use(first)
    sums, losses = {name: torch.zeros_like(tensor) for name, tensor in first.items()}, 0.0

    def add(piece: tuple[Tensor, ...], into: Any) -> None:
        nonlocal losses
        losses += float(compute.add_gradients(piece, into, compute.weight(piece)).detach()) * compute.weight(piece)

    compute.micro_batch.in_pieces(batch, sums, add)
    largest = max(float(gradient.abs().max()) for gradient in expected[1].values())
    for name, gradient in expected[1].items():
        assert (sums[name] / len(PAIRS) - gradient).abs().max() <= TOLERANCES[bits] * largest, name
    assert losses / len(PAIRS) == pytest.approx(expected[0], rel=TOLERANCES[bits])
    assert compute.loss(first, batch) == pytest.approx(expected[0], rel=TOLERANCES[bits])


def test_the_margin_is_that_of_each_pair() -> None:
    _, marks = rows_of(packed())
    lengths = [each for row in ROWS for number in row for each in PAIRS[number][1:]]
    ratios = torch.cat([torch.full((length,), 2.0**at) for at, length in enumerate(lengths)])
    due = [2.0**at * lengths[at] - 2.0 ** (at + 1) * lengths[at + 1] for at in range(0, len(lengths), 2)]
    assert preferred_by(ratios, marks).tolist() == due


def _rejected_first(marks: Tensor) -> None:
    marks[1, 0] = BEGINS


def _both_chosen(marks: Tensor) -> None:
    marks[1, marks[1] == BEGINS] |= CHOSEN


def _half_a_pair(marks: Tensor) -> None:
    second = int((marks[1] == BEGINS).nonzero()[0])
    marks[1, second:] = 0


def _nothing_rejected_counts(marks: Tensor) -> None:
    second = int((marks[1] == BEGINS).nonzero()[0])
    marks[1, second + 1 :] &= BEGINS


def _chosen_within(marks: Tensor) -> None:
    marks[1, 2] |= CHOSEN


def _counts_in_the_padding(marks: Tensor) -> None:
    marks[1, -1] = COUNTS


@pytest.mark.parametrize(
    "change",
    [_rejected_first, _both_chosen, _half_a_pair, _nothing_rejected_counts, _chosen_within, _counts_in_the_padding],
)
def test_rows_that_hold_no_pairs_are_refused(change: Callable[[Tensor], None]) -> None:
    form = Conversations(context=CONTEXT, packed=True, preferences=True)
    _, marks = rows_of(packed())
    assert counted_of(marks.numpy(), form) == sum(one + other for _, one, other in PAIRS)
    change(marks)
    with pytest.raises(ValueError, match="marks that are not of pairs"):
        counted_of(marks.numpy(), form)


def test_two_pairs_in_a_row_are_refused_where_the_manifest_says_one() -> None:
    form = Conversations(context=CONTEXT, packed=False, preferences=True)
    _, marks = rows_of(packed())
    assert counted_of(marks[1:].numpy(), form)
    with pytest.raises(ValueError, match="several conversations in a row"):
        counted_of(marks.numpy(), form)
    with pytest.raises(ValueError, match="marks that are not of conversations"):
        counted_of(marks.numpy(), Conversations(context=CONTEXT, packed=True))
