"""The built-in Llama, against transformers' `LlamaForCausalLM`, and its weights from a folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor

from thinwire_proto.contract.models.llama import LlamaSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.models.llama import Llama, LlamaTask

SIZE: dict[str, Any] = {"vocabulary": 96, "width": 64, "layers": 3, "hidden": 80, "context": 48}
SPECS = {
    "each query head its own keys": LlamaSpec(**SIZE, heads=4, kv_heads=4, tied=True),
    "grouped queries, untied": LlamaSpec(**SIZE, heads=4, kv_heads=2, tied=False),
    "one head of keys, other constants": LlamaSpec(**SIZE, heads=2, kv_heads=1, rope_theta=5e5, norm_epsilon=1e-3),
}


def drawn(spec: LlamaSpec) -> dict[str, Tensor]:
    """Parameters of a size at which every part of the model shows in the logits."""
    generator = torch.Generator().manual_seed(3)
    return {p.name: 0.3 * torch.randn(p.shape, generator=generator) for p in LlamaTask(spec).manifest()}


def built(spec: LlamaSpec, parameters: dict[str, Tensor]) -> Llama:
    model = LlamaTask(spec).model("cpu")
    missing, unexpected = model.load_state_dict(parameters, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"] if spec.tied else [], [])
    return model


def folder_of(spec: LlamaSpec, parameters: dict[str, Tensor], folder: Path) -> Path:
    """Write a folder as `export` does."""
    exported = LlamaTask(spec).hugging_face(parameters)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(exported.config))
    save_file(exported.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@torch.no_grad()
@pytest.mark.parametrize("name", SPECS)
def test_logits_and_greedy_text_equal_those_of_transformers(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - takes seconds

    spec = SPECS[name]
    parameters = drawn(spec)
    ours = built(spec, parameters)
    theirs, report = AutoModelForCausalLM.from_pretrained(
        folder_of(spec, parameters, tmp_path / "model"), output_loading_info=True
    )
    assert type(theirs).__name__ == "LlamaForCausalLM"
    assert not any(report.values())
    tokens = torch.randint(0, spec.vocabulary, (2, spec.context), generator=torch.Generator().manual_seed(4))
    expected = theirs(tokens).logits
    assert (ours(tokens) - expected).abs().max() < 1e-5 * expected.abs().max()
    assert torch.allclose(ours.next_logits(tokens[0, :9]), expected[0, 8], atol=1e-5 * float(expected.abs().max()))
    written = tokens[0, :5]
    for _ in range(20):
        written = torch.cat([written, ours.next_logits(written).argmax(0, keepdim=True)])
    greedy = theirs.generate(
        tokens[:1, :5], attention_mask=torch.ones(1, 5, dtype=torch.int64), max_new_tokens=20, do_sample=False
    )
    assert torch.equal(written, greedy[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_run_begins_from_a_folder(dtype: torch.dtype, tmp_path: Path) -> None:
    spec = SPECS["grouped queries, untied"]
    parameters = {name: tensor.to(dtype) for name, tensor in drawn(spec).items()}
    loaded = LlamaTask(spec).load(folder_of(spec, parameters, tmp_path))
    assert list(loaded) == list(drawn(spec))
    assert all(torch.equal(loaded[name], tensor.float()) for name, tensor in parameters.items())
    assert {tensor.dtype for tensor in loaded.values()} == {torch.float32}


def change_config(**keys: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | keys))

    return change


def change_tensor(name: str, tensor: Tensor | None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        kept = {key: value for key, value in load_file(folder / "model.safetensors").items() if key != name}
        save_file(kept if tensor is None else kept | {name: tensor}, folder / "model.safetensors")

    return change


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (change_tensor(NORM, None), r"model\.norm\.weight: is missing; the model"),
        (change_tensor(NORM, torch.ones(63)), r"model\.norm\.weight: has shape \(63,\); .* has \(64,\)"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"\0" * 99), "cannot be read as safetensors"),
        (lambda folder: (folder / "model.safetensors").unlink(), r"has neither model\.safetensors nor .* convert"),
        (lambda folder: (folder / "config.json").unlink(), r"config\.json: cannot be read: No such file"),
        (lambda folder: (folder / "config.json").write_text("{"), r"config\.json: is not JSON"),
        (lambda folder: (folder / "config.json").write_text("[" * 100_000), r"config\.json: is not JSON"),
        (change_config(num_attention_heads=8), "num_attention_heads is 8; the model of this run has 4"),
        (change_config(rope_parameters={"rope_type": "default", "rope_theta": 5e5}), "rope_parameters is .*500000"),
        (change_config(rope_parameters=None, rope_theta=5e5), "rope_parameters is .*500000"),
        (change_config(max_position_embeddings=47), "max_position_embeddings is 47"),
        (change_config(model_type="mistral"), "model_type is 'mistral'; the model of this run has 'llama'"),
    ],
)
def test_weights_that_do_not_fit_are_refused(change: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    spec = SPECS["grouped queries, untied"]
    folder = folder_of(spec, drawn(spec), tmp_path)
    LlamaTask(spec).load(folder)
    change(folder)
    with pytest.raises(ConfigError, match=said):
        LlamaTask(spec).load(folder)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"heads": 5}, "width must be a multiple of 2·heads; 128 is not one of 10"),
        ({"heads": 8, "kv_heads": 3}, "kv_heads must divide heads; 3 does not divide 8"),
        ({"rope_theta": 0.5}, "rope_theta"),
        ({"norm_epsilon": 0.0}, "norm_epsilon"),
    ],
)
def test_a_spec_that_cannot_be_built_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        LlamaSpec(**keys)
