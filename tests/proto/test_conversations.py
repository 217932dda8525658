"""Packed conversations: each sees itself alone, and the loss is that of transformers with labels of -100."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from thinwire_node.training.compute import TorchCompute
from thinwire_node.training.micro_batch import MicroBatch
from thinwire_proto.contract import DecoderSpec, ModelSpec
from thinwire_proto.contract.models.hf import HuggingFaceSpec
from thinwire_proto.contract.models.llama import LlamaSpec
from thinwire_proto.data.conversations import BEGINS, COUNTS, positions_of, weight_of
from thinwire_proto.models.transformers_models import CausalLM, build
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import LearnsConversations, Task, complete_model, task_of

VOCABULARY, CONTEXT = 96, 32
GATED = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GATED |= {"num_key_value_heads": 2, "intermediate_size": 80, "max_position_embeddings": 64}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": GATED | {"head_dim": 16, "tie_word_embeddings": True},
    "mistral": GATED | {"sliding_window": 8},
    "gpt2": {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64},
}
PACKED = [[(9, 4), (14, 10), (7, 2)], [(33, 20)], [(12, 1), (20, 6)]]
"""Conversations of each row: their tokens, and how many at their end count."""


def spec_of(kind: str) -> ModelSpec:
    if kind == "decoder":
        return DecoderSpec(vocabulary=VOCABULARY, context=CONTEXT, width=64, layers=2, heads=2, hidden=96)
    if kind == "llama":
        return LlamaSpec(vocabulary=VOCABULARY, context=CONTEXT, width=64, layers=2, heads=4, kv_heads=2, hidden=96)
    config = {"model_type": kind, "attention_dropout": 0.0} | CONFIGS[kind]
    config |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0) if kind == "gpt2" else {}
    config.pop("attention_dropout") if kind == "gpt2" else None
    found, _ = complete_model(HuggingFaceSpec.model_validate({"config": config, "context": CONTEXT}), lambda: None)
    return found


def conversations() -> list[list[tuple[Tensor, int]]]:
    generator = torch.Generator().manual_seed(5)
    return [
        [(torch.randint(0, VOCABULARY, (length,), generator=generator), counts) for length, counts in row]
        for row in PACKED
    ]


def packed(rows: list[list[tuple[Tensor, int]]]) -> tuple[Tensor, Tensor]:
    """Rows of tokens and marks, as `prepare` packs them."""
    tokens = torch.zeros(len(rows), CONTEXT + 1, dtype=torch.int64)
    marks = torch.zeros(len(rows), CONTEXT + 1, dtype=torch.uint8)
    for row, found in enumerate(rows):
        at = 0
        for each, counts in found:
            end = at + len(each)
            tokens[row, at:end] = each
            marks[row, at] = BEGINS
            marks[row, end - counts : end] = COUNTS
            at = end
        if at <= CONTEXT:
            marks[row, at] = BEGINS
    return tokens, marks


def gradients(
    task: Task, parameters: Mapping[str, Tensor], batch: tuple[Tensor, ...]
) -> tuple[float, dict[str, Tensor]]:
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in parameters.items()}
    loss = Stateless(task.model("cpu")).loss(leaves, batch)
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach()), {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


def check_equal(one: tuple[float, dict[str, Tensor]], other: tuple[float, dict[str, Tensor]]) -> None:
    assert one[0] == pytest.approx(other[0], rel=1e-5)
    assert one[1].keys() == other[1].keys()
    largest = max(float(gradient.abs().max()) for gradient in other[1].values())
    assert largest > 1e-3
    for name, gradient in other[1].items():
        assert (one[1][name] - gradient).abs().max() <= 1e-5 * max(1.0, largest), name


@pytest.mark.parametrize("kind", ["decoder", "llama", *CONFIGS])
def test_packed_conversations_learn_what_they_learn_alone(kind: str) -> None:
    task = task_of(spec_of(kind))
    assert isinstance(model := task.model("meta"), LearnsConversations)
    assert model.packs
    parameters, rows = task.initial_state(3), conversations()
    together = packed(rows)
    alone = packed([[one] for row in rows for one in row])
    assert weight_of(*together) == weight_of(*alone) == sum(counts for row in PACKED for _, counts in row)
    check_equal(gradients(task, parameters, together), gradients(task, parameters, alone))
    plain = gradients(task, parameters, together[:1])[0]
    assert abs(plain - gradients(task, parameters, together)[0]) > 1e-3  # what does not count makes a difference


def of_transformers(kind: str, batch: Mapping[str, Tensor]) -> tuple[float, dict[str, Tensor]]:
    """The loss of transformers' own loop on a batch with labels, and its gradients, at the same parameters as ours."""
    spec = spec_of(kind)
    assert isinstance(spec, HuggingFaceSpec)
    inner: Any = build(spec.config, "cpu")
    wrapped, parameters = CausalLM(inner, CONTEXT), task_of(spec).initial_state(3)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            parameter.copy_(parameters[name])
    loss = inner(**batch, use_cache=False).loss
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in wrapped.named_parameters() if p.grad is not None}


def check_parity(kind: str, batch: Mapping[str, Tensor]) -> None:
    """Compare with ours on the same conversations, packed."""
    task = task_of(spec_of(kind))
    check_equal(gradients(task, task.initial_state(3), packed(conversations())), of_transformers(kind, batch))


@pytest.mark.parametrize("kind", CONFIGS)
def test_loss_and_gradients_are_those_of_transformers_with_labels_of_100_below_zero(kind: str) -> None:
    """Each conversation is padded to a row of its own, with an attention mask."""
    each = [one for row in conversations() for one in row]
    longest = max(len(tokens) for tokens, _ in each)
    ids, labels = (torch.full((len(each), longest), fill) for fill in (0, -100))
    attention = torch.zeros(len(each), longest, dtype=torch.int64)
    for number, (tokens, counts) in enumerate(each):
        ids[number, : len(tokens)], attention[number, : len(tokens)] = tokens, 1
        labels[number, len(tokens) - counts : len(tokens)] = tokens[-counts:]
    check_parity(kind, {"input_ids": ids, "attention_mask": attention, "labels": labels})


@pytest.mark.parametrize("padding_free", [False, True])
def test_loss_and_gradients_are_those_of_batches_of_trl(padding_free: bool) -> None:
    sft = pytest.importorskip("trl.trainer.sft_trainer", reason="pip install --no-deps trl accelerate")
    examples = [
        {"input_ids": tokens.tolist(), "labels": [-100] * (len(tokens) - counts) + tokens[-counts:].tolist()}
        for row in conversations()
        for tokens, counts in row
    ]
    collator = sft.DataCollatorForLanguageModeling(pad_token_id=0, padding_free=padding_free)
    kept = ("input_ids", "attention_mask", "labels", "position_ids")
    check_parity("qwen3", {name: tensor for name, tensor in collator(examples).items() if name in kept})


def test_pieces_of_a_batch_add_up_by_the_tokens_that_count() -> None:
    task = task_of(spec_of("llama"))
    parameters, batch = task.initial_state(3), packed(conversations())
    whole, parts = ({name: torch.zeros_like(tensor) for name, tensor in parameters.items()} for _ in range(2))
    compute = TorchCompute(task, torch.device("cpu"), micro_batch=MicroBatch(1))
    compute.use(parameters)
    compute.add_gradients(batch, whole, compute.weight(batch))
    losses = 0.0

    def add(piece: tuple[Tensor, ...], sums: Any) -> None:
        nonlocal losses
        losses += float(compute.add_gradients(piece, sums, compute.weight(piece)).detach()) * compute.weight(piece)

    compute.micro_batch.in_pieces(batch, parts, add)
    for name, total in whole.items():
        assert torch.allclose(parts[name], total, rtol=1e-4, atol=1e-5), name
    weight = compute.weight(batch)
    assert compute.loss(parameters, batch) == pytest.approx(losses / weight, rel=1e-6)
    in_one_go = float(Stateless(task.model("cpu")).loss(parameters, batch))
    assert losses / weight == pytest.approx(in_one_go, rel=1e-6)


def test_positions_are_counted_from_each_conversations_beginning() -> None:
    marks = torch.tensor([[BEGINS, 0, COUNTS, BEGINS, COUNTS, BEGINS, 0]], dtype=torch.uint8)
    assert positions_of(marks).tolist() == [[0, 1, 2, 0, 1, 0, 1]]


@pytest.mark.parametrize("config", [{"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 1}])
def test_a_model_whose_state_runs_through_a_row_does_not_pack(config: dict[str, Any]) -> None:
    spec, _ = complete_model(
        HuggingFaceSpec.model_validate({"config": config | {"vocab_size": VOCABULARY}, "context": CONTEXT}),
        lambda: None,
    )
    model = task_of(spec).model("meta")
    assert isinstance(model, LearnsConversations)
    assert not model.packs, json.dumps(config)
