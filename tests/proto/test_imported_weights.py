"""Weights from a folder: a run begins from the model that transformers opens there, or is refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from thinwire_proto.contract.models.hf import HuggingFaceSpec
from thinwire_proto.contract.models.llama import LlamaSpec
from thinwire_proto.contract.models.lora import LoraSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.lfs_pointer import IS_LFS_POINTER
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import Task, complete_model, task_of

VOCABULARY = 96
N = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
N |= {"max_position_embeddings": 48}
G = N | {"num_key_value_heads": 2, "intermediate_size": 80}
H = G | {"head_dim": 16}
GPT = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 48}
LLAMA3: dict[str, Any] = {"rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"rope_type": "llama3", "original_max_position_embeddings": 16}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 12}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
MLA = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16}
ROUTED = {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": G,
    "llama, biases, tied": G | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    "llama, positions of llama 3": G | {"rope_parameters": LLAMA3},
    "llama, positions that grow": G | {"rope_parameters": DYNAMIC},
    "mistral, a window": G | {"sliding_window": 8},
    "mixtral": G | {"num_local_experts": 4},
    "qwen2, biases, a window in one layer": G
    | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
    "qwen2, yarn, tied": G | {"rope_parameters": YARN, "tie_word_embeddings": True},
    "qwen3_moe": H | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "gemma2": H | {"sliding_window": 8, "query_pre_attn_scalar": 16},
    "gemma3_text": H | {"sliding_window": 8},
    "gpt2": GPT,
    "gpt_neox": N | {"intermediate_size": 80},
    "phi": G | {"partial_rotary_factor": 0.5},
    "phi3": G | {"pad_token_id": 0},
    "olmo2": G,
    "granite": G | {"logits_scaling": 2.0, "residual_multiplier": 0.5},
    "starcoder2": G | {"use_bias": True},
    "opt": N | {"ffn_dim": 80, "word_embed_proj_dim": 64},
    "bloom": {"vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 2, "n_head": 4},
    "falcon": N | {"alibi": True},
    "gpt_oss": H | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8},
    "deepseek_v3": G | MLA | ROUTED | {"num_key_value_heads": 4, "first_k_dense_replace": 1},
}
REFUSED_FAMILIES = {
    "deepseek_v3": r"e_score_correction_bias: has values of its own in the files, but it is no parameter"
}


def saved(folder: Path, model_type: str, **config: Any) -> Path:
    """A folder that transformers wrote, with random values in all that its files hold."""
    import transformers  # noqa: PLC0415 - takes seconds

    made = transformers.CONFIG_MAPPING[model_type].from_dict({"model_type": model_type} | config)
    model: Any = transformers.AutoModelForCausalLM.from_config(made)
    generator = torch.Generator().manual_seed(2)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            ones = name.endswith("weight") and tensor.dim() == 1  # of norms
            tensor.copy_(0.2 * torch.randn(tensor.shape, generator=generator) + ones)
    model.save_pretrained(folder)
    return folder


def logits_there(folder: Path, tokens: Tensor) -> Tensor:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    with torch.no_grad():
        found: Tensor = AutoModelForCausalLM.from_pretrained(folder).eval()(tokens[None]).logits[0, -1]
    return found


def logits_here(task: Task, folder: Path, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = Stateless(task.model("cpu")).next_logits(task.load(folder), tokens)
    return found


def equal_logits(task: Task, folder: Path) -> bool:
    tokens = torch.randint(1, VOCABULARY, (30,), generator=torch.Generator().manual_seed(3))
    here, there = logits_here(task, folder, tokens), logits_there(folder, tokens)
    return bool((here - there).abs().max() < 1e-5 * there.abs().max())


def hf_task(folder: Path) -> Task:
    return task_of(complete_model(HuggingFaceSpec(weights=str(folder)), lambda: None)[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_transformers_or_the_weights_are_refused(family: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, family.partition(",")[0], **FAMILIES[family])
    if said := REFUSED_FAMILIES.get(family):
        with pytest.raises(ConfigError, match=said):
            hf_task(folder).load(folder)
    else:
        assert equal_logits(hf_task(folder), folder)


NATIVE = LlamaSpec(vocabulary=VOCABULARY, width=64, layers=2, heads=4, kv_heads=2, hidden=80, context=48, tied=False)
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 1e4}


def without(*keys: str) -> Callable[[Path], None]:
    """Remove keys of the config, so that transformers takes its defaults."""

    def remove(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({key: config[key] for key in config if key not in keys}))

    return remove


@pytest.mark.parametrize(
    ("config", "change", "spec", "said"),
    [
        ({"rms_norm_eps": 1e-5}, None, {}, ""),
        ({"rms_norm_eps": 1e-5, "tie_word_embeddings": True}, None, {"tied": True}, ""),
        ({"rms_norm_eps": 1e-5, "max_position_embeddings": 96}, None, {}, ""),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, None, {"rope_theta": 5e5}, "rms_norm_eps"),
        ({}, without("rms_norm_eps"), {}, "rms_norm_eps is 1e-06; the model of this run has 1e-05"),
        ({}, without("rms_norm_eps"), {"norm_epsilon": 1e-6}, ""),
        ({"rms_norm_eps": 1e-5}, without("num_attention_heads"), {}, "num_attention_heads is 32"),
        ({"rms_norm_eps": 1e-5}, without("tie_word_embeddings"), {"tied": True}, "tie_word_embeddings is False"),
        ({"rms_norm_eps": 1e-5, "attention_bias": True}, None, {}, "attention_bias is True.*'hf' takes such a model"),
        ({"rms_norm_eps": 1e-5, "mlp_bias": True}, None, {}, "mlp_bias is True.*'hf' takes"),
        ({"rms_norm_eps": 1e-5, "hidden_act": "gelu"}, None, {}, "hidden_act is 'gelu'.*'hf' takes"),
        ({"rms_norm_eps": 1e-5, "head_dim": 32}, None, {}, "head_dim is 32.*'hf' takes"),
        ({"rms_norm_eps": 1e-5, "rope_parameters": LLAMA3}, None, {"rope_theta": 5e5}, "rope_parameters.*'hf' takes"),
        ({"rms_norm_eps": 1e-5, "rope_parameters": DYNAMIC}, None, {}, "rope_parameters.*'hf' takes"),
        ({"rms_norm_eps": 1e-5, "rope_parameters": DEFAULT_ROPE}, None, {}, ""),
    ],
)
def test_the_built_in_llama_computes_the_same_or_refuses(
    config: dict[str, Any], change: Any, spec: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder = saved(tmp_path, "llama", **G | config)
    if change:
        change(folder)
    task = task_of(NATIVE.model_copy(update=spec))
    if said:
        with pytest.raises(ConfigError, match=said):
            task.load(folder)
    else:
        assert equal_logits(task, folder)


def edited(folder: Path, edit: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Path:
    path = folder / "model.safetensors"
    save_file(edit(load_file(path)), path, {"format": "pt"})
    return folder


EMBEDDING, HEAD, QUERY = "model.embed_tokens.weight", "lm_head.weight", "model.layers.0.self_attn.q_proj"


def renamed(old: str, new: str) -> Callable[[dict[str, Tensor]], dict[str, Tensor]]:
    return lambda tensors: {name.replace(old, new, 1): tensor for name, tensor in tensors.items()}


FREQUENCIES = "model.layers.0.self_attn.rotary_emb.inv_freq"
EDITS: dict[str, tuple[Callable[[dict[str, Tensor]], dict[str, Tensor]], str]] = {
    "a bias": (
        lambda t: t | {f"{QUERY}.bias": torch.zeros(64)},
        r"does not take.*: model\.layers\.0\.self_attn\.q_proj\.bias",
    ),
    "a norm of queries": (lambda t: t | {f"{QUERY[:-6]}q_norm.weight": torch.ones(16)}, "does not take.*q_norm"),
    "a third layer": (
        lambda t: t | {n.replace("layers.1", "layers.2"): x.clone() for n, x in t.items() if "layers.1" in n},
        r"does not take.*model\.layers\.2\.\S+, \S+, \S+ and 6 more",
    ),
    "a head of another task": (lambda t: t | {"score.weight": torch.ones(2, 64)}, r"does not take.*: score\.weight"),
    "another head, though tied": (lambda t: t | {HEAD: t[EMBEDDING] + 1}, r"lm_head\.weight: has other values than"),
    "the same head": (lambda t: t | {HEAD: t[EMBEDDING].clone()}, ""),
    "the head alone": (lambda t: {HEAD: t[EMBEDDING]} | {n: x for n, x in t.items() if n != EMBEDDING}, ""),
    "frequencies": (lambda t: t | {FREQUENCIES: torch.ones(8)}, ""),
    "DistributedDataParallel": (
        lambda t: {f"module.{name}": tensor for name, tensor in t.items()},
        r"is missing; .* but the files have module\.\S+, .*: was a wrapper saved",
    ),
    "compiled inside": (renamed("model.", "model._orig_mod."), r"is missing; .* have model\._orig_mod\..* a wrapper"),
    "integers": (
        lambda t: t | {f"{QUERY}.weight": torch.ones(64, 64, dtype=torch.int8)},
        "has type I8; take weights in",
    ),
}


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("tied"), "llama", **G, rms_norm_eps=1e-5, tie_word_embeddings=True)


@pytest.mark.parametrize("kind", ["llama", "hf"])
@pytest.mark.parametrize("edit", EDITS)
def test_tensors_that_the_model_does_not_take(edit: str, kind: str, tied: Path, tmp_path: Path) -> None:
    change, said = EDITS[edit]
    for path in tied.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    folder = edited(tmp_path, change)
    task = hf_task(folder) if kind == "hf" else task_of(NATIVE.model_copy(update={"tied": True}))
    if said:
        with pytest.raises(ConfigError, match=said):
            task.load(folder)
    else:
        assert equal_logits(task, folder)


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0a' * 32}\nsize 12345671\n"


@pytest.mark.parametrize(
    "file", ["model.safetensors", "config.json", "model.safetensors.index.json", "part.safetensors"]
)
@pytest.mark.parametrize("kind", ["llama", "hf", "lora"])
def test_a_pointer_of_git_lfs_is_named(kind: str, file: str, tied: Path, tmp_path: Path) -> None:
    for path in tied.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    if file not in ("model.safetensors", "config.json"):
        (tmp_path / "model.safetensors").unlink()
        index = {"metadata": {}, "weight_map": {EMBEDDING: "part.safetensors"}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / file).write_text(POINTER)
    begin: dict[str, Callable[[], object]] = {
        "llama": lambda: task_of(NATIVE.model_copy(update={"tied": True})).load(tmp_path),
        "hf": lambda: hf_task(tmp_path).load(tmp_path),
        "lora": lambda: complete_model(LoraSpec(base=str(tmp_path)), lambda: None),
    }
    with pytest.raises(ConfigError) as raised:
        begin[kind]()
    assert str(raised.value) == f"{tmp_path / file}: {IS_LFS_POINTER}"
    assert "git lfs pull" in IS_LFS_POINTER
