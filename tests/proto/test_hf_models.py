"""Models of transformers, from a config or a folder: they train, export and open again; what is unsafe is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import Tensor

from support.toy_kinds import SlopesSpec
from support.two_nodes import Counting, TwoNodes
from thinwire_proto.contract import Contract, RunSpec, parse_contract, run_differences
from thinwire_proto.contract.models.hf import HuggingFaceSpec
from thinwire_proto.contract.models.hugging_face_config import CONFIG_BYTES_MAX
from thinwire_proto.errors import ConfigError
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import complete_model, task_of

VOCABULARY = 96
COMMON = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
GATED = COMMON | {"num_key_value_heads": 2, "intermediate_size": 80, "max_position_embeddings": 48}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3": GATED | {"head_dim": 16, "tie_word_embeddings": True},
    "mixtral": GATED | {"num_local_experts": 4},
    "gpt2": {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 48},
}


def completed(config: dict[str, Any], **keys: Any) -> HuggingFaceSpec:
    spec = HuggingFaceSpec.model_validate({"config": config, **keys})
    found, blobs = complete_model(spec, lambda: None)
    assert isinstance(found, HuggingFaceSpec)
    assert not blobs
    return found


def small(model_type: str) -> HuggingFaceSpec:
    return completed({"model_type": model_type} | CONFIGS[model_type])


def contract_of(spec: HuggingFaceSpec) -> Contract:
    schedule = {"learning_rate": 0.003, "warmup_steps": 1, "steps": 100}
    sections = {"model": spec, "data": SlopesSpec(), "schedule": schedule}
    return Contract.model_validate(sections | {"parameters": task_of(spec).manifest()})


def folder_of(spec: HuggingFaceSpec, parameters: dict[str, Tensor], folder: Path) -> Path:
    """Write a folder as `export` does."""
    exported = task_of(spec).hugging_face(parameters)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(exported.config))
    save_file(exported.tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize("model_type", CONFIGS)
def test_a_model_trains_exports_and_opens_in_transformers(model_type: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - takes seconds

    spec = small(model_type)
    task = task_of(spec)
    nodes = TwoNodes(contract_of(spec), Counting(32), task.initial_state(1))
    nodes.train(6)
    nodes.check_exact()
    assert nodes.losses[-1] < 0.9 * nodes.losses[0]
    parameters = nodes.trainers[0].replica.tensors
    folder = folder_of(spec, parameters, tmp_path / "model")
    theirs, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values())
    tokens = torch.randint(0, VOCABULARY, (20,), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = theirs(tokens[None]).logits[0, -1]
        ours = Stateless(task.model("cpu")).next_logits(parameters, tokens)
    assert (ours - expected).abs().max() < 1e-5 * expected.abs().max()
    again = task.load(folder)
    assert list(again) == [parameter.name for parameter in task.manifest()]
    assert all(torch.equal(again[name], tensor) for name, tensor in parameters.items())


def test_dropout_does_not_depend_on_what_was_drawn_before() -> None:
    spec = small("gpt2")
    losses = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        nodes = TwoNodes(contract_of(spec), Counting(32), task_of(spec).initial_state(1))
        nodes.train(2)
        losses.append(nodes.losses)
    assert losses[0] == losses[1]


def test_the_contract_has_the_complete_config_and_a_run_file_needs_only_a_part(tmp_path: Path) -> None:
    spec = small("qwen3")
    assert (spec.vocabulary, spec.context) == (VOCABULARY, 48)
    config = json.loads(spec.config)
    assert config["rms_norm_eps"] == 1e-6  # transformers' default
    contract = contract_of(spec)
    assert parse_contract(contract.written) == contract
    part = {"model_type": "qwen3"} | CONFIGS["qwen3"]
    (tmp_path / "config.json").write_text(json.dumps(part))
    for model in ({"config": part}, {"folder": str(tmp_path)}):
        run = RunSpec.model_validate({"model": {"kind": "hf"} | model, "data": SlopesSpec()})
        assert [one for one in run_differences(contract, run) if one.startswith("model")] == []
    other = RunSpec.model_validate({"model": {"kind": "hf", "config": part | {"hidden_size": 128}}})
    found = run_differences(contract, other.model_copy(update={"data": SlopesSpec()}))
    assert any(one.startswith("model.config") for one in found)


@pytest.mark.parametrize(
    ("config", "keys", "said"),
    [
        ({"model_type": "qwen99"}, {}, "model_type is 'qwen99', which transformers .* does not have"),
        ({"model_type": "qwen3", "hiden_size": 64}, {}, "hiden_size: .* did you mean hidden_size?"),
        ({"model_type": "qwen3", "hidden_size": "wide"}, {}, "transformers cannot read this config"),
        ({"model_type": "gpt2", "n_embd": 65, "n_head": 4}, {}, "transformers .* cannot build this model"),
        ({"model_type": "vit"}, {}, r"has no vocab_size|cannot build this model"),
        ({"model_type": "gpt2"} | CONFIGS["gpt2"], {"context": 49}, r"context is 49; .* at most 48"),
    ],
)
def test_a_config_that_cannot_be_built_is_refused(config: dict[str, Any], keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        task_of(completed(config, **keys)).manifest()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "x", "auto_map": {"AutoModel": "code.Model"}}, "auto_map: .* never runs"),
        ({"model_type": "x", "text_config": {"auto_map": {"AutoModel": "code.Model"}}}, "auto_map: .* never runs"),
        ({"model_type": "x", "quantization_config": {"bits": 4}}, "quantization_config: quantized"),
        ({"model_type": "x", "_attn_implementation": "someone/kernel"}, "a setting of a machine"),
        ({"model_type": "x", "attn_implementation": "someone/kernel"}, "a setting of a machine"),
        ({"model_type": "x", "num_hidden_layers": 10**9}, "num_hidden_layers: is 1000000000; at most 1024"),
        ({"hidden_size": 64}, "has no model_type"),
        ({"model_type": "x", "y": "z" * CONFIG_BYTES_MAX}, "at most 65,536"),
        ('{"model_type": "x"}', "is not canonical JSON"),
        ("{", "config"),
    ],
)
def test_a_contract_with_an_unsafe_config_is_refused_before_transformers_sees_it(config: object, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        HuggingFaceSpec.model_validate({"config": config, "vocabulary": 10, "context": 10})


def test_other_kinds_do_not_import_transformers() -> None:
    code = """
import sys
from thinwire_proto.models import PRESETS
from thinwire_proto.task import TASKS, task_of
task_of(PRESETS["llama-1m"]).manifest()
assert TASKS["hf"]
assert not {"transformers", "peft", "timm"} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
