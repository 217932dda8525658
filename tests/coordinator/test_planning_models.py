"""Tests of `thinwire-coordinator init` on models of transformers, and on adapters of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from support import prepared as sources
from support.adapters import CONFIG, base_folder
from support.hub import REVISION, cached
from support.planning import prepared, run_init
from thinwire_coordinator.cli.check import check
from thinwire_coordinator.cli.parser import parser
from thinwire_coordinator.hall.ledger.creation import keep_blobs
from thinwire_coordinator.planning.completion import complete, facts_of
from thinwire_coordinator.planning.plan import base_memories, node_memory_bytes
from thinwire_coordinator.planning.problems import read_run
from thinwire_coordinator.prepare.tokenizer_choice import find_tokenizer
from thinwire_proto.blobs import blob_of
from thinwire_proto.contract import RunSpec
from thinwire_proto.contract.models.lora import LoraSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.models import lora
from thinwire_proto.needs import PROGRAM_BYTES, trained_bytes
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import complete_model, task_of

SIZES: dict[str, Any] = {"vocab_size": 1024, "hidden_size": 64, "intermediate_size": 80, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}


def saved(folder: Path, model_type: str = "llama", **config: Any) -> Path:
    """A folder that transformers wrote, with random values."""
    import transformers  # noqa: PLC0415 - takes seconds

    made = transformers.CONFIG_MAPPING[model_type].from_dict(SIZES | config)
    model: Any = transformers.AutoModelForCausalLM.from_config(made)
    generator = torch.Generator().manual_seed(2)
    for tensor in model.state_dict().values():
        tensor.copy_(0.2 * torch.randn(tensor.shape, generator=generator) + (tensor.dim() == 1))
    model.save_pretrained(folder)
    return folder


def begun(folder: Path, *more: str) -> RunSpec:
    """The completed run that `init` writes for a folder."""
    data, out = folder.parent / "data", folder.parent / "run.toml"
    if not data.exists():
        prepared(data)
    run_init("--model", str(folder), "--data", str(data), "--out", str(out), "--force", *more)
    found = complete(read_run(out))
    assert found.errors == ()
    return found.run.model_copy(update={"model": found.run.model.model_copy(update={"weights": str(folder)})})


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({}, 128),
        ({"tie_word_embeddings": True, "rope_theta": 500_000.0, "rms_norm_eps": 1e-5}, 128),
        ({"num_key_value_heads": 4, "attention_dropout": 0.0, "max_position_embeddings": 8192}, 1024),
    ],
    ids=["plain", "tied", "long"],
)
def test_a_llama_of_transformers_is_the_built_in_one(
    config: dict[str, Any], context: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has the logits that transformers computes, and volunteers need no transformers."""
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - takes seconds

    folder = saved(tmp_path / "model", **config)
    run = begun(folder)
    assert (run.model.kind, run.model.context) == ("llama", context)
    assert "model.kind" not in capsys.readouterr().out
    task, tokens = task_of(run.model), torch.randint(1, 1024, (30,), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        here = Stateless(task.model("cpu")).next_logits(task.load(folder), tokens)
        there = AutoModelForCausalLM.from_pretrained(folder).eval()(tokens[None]).logits[0, -1]
    assert (here - there).abs().max() < 1e-5 * there.abs().max()


def _prefix_gone(folder: Path) -> None:
    """As transformers writes a model without its head."""
    tensors = load_file(folder / "model.safetensors")
    save_file({name.removeprefix("model."): tensor for name, tensor in tensors.items()}, folder / "model.safetensors")


def _length_gone(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("model_type", "config", "change", "why"),
    [
        ("qwen3", {"head_dim": 16}, None, "model_type is 'qwen3'"),
        ("llama", {"attention_bias": True}, None, "attention_bias is True and not False"),
        ("llama", {"mlp_bias": True}, None, "mlp_bias is True and not False"),
        ("llama", {"hidden_act": "gelu"}, None, "hidden_act is 'gelu' and not 'silu'"),
        ("llama", {"head_dim": 32}, None, "head_dim is 32 and not 16"),
        ("llama", {"hidden_size": 60, "head_dim": 16}, None, "width must be a multiple of 2·heads; 60 is not one of 8"),
        ("llama", {}, _length_gone, "config.json has no number max_position_embeddings"),
        ("llama", {"attention_dropout": 0.1}, None, "attention_dropout is 0.1 and not 0"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}},
            None,
            "rope_parameters",
        ),
        ("llama", {"tie_word_embeddings": True}, _prefix_gone, "the files have embed_tokens.weight"),
    ],
)
def test_what_the_built_in_llama_cannot_hold_is_left_to_transformers(
    model_type: str,
    config: dict[str, Any],
    change: Callable[[Path], None] | None,
    why: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = saved(tmp_path / "model", model_type, **config)
    if change is not None:
        change(folder)
    run = begun(folder)
    assert run.model.kind == "hf"
    (note,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("note: model.kind"))
    assert why in note
    assert note.endswith("Each volunteer needs pip install 'thinwire[hf]'")
    task_of(run.model).load(folder)


@pytest.mark.parametrize(("range_of_weights", "kind"), [(0.02, "llama"), (0.01, "hf")])
def test_a_model_of_transformers_begins_from_its_config_or_its_weights(
    range_of_weights: float, kind: str, tmp_path: Path
) -> None:
    data, out, folder = prepared(tmp_path / "data"), tmp_path / "run.toml", tmp_path / "model"
    folder.mkdir()
    config = {"model_type": "llama", "vocab_size": 32_000, "hidden_size": 64, "intermediate_size": 64}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 128}
    (folder / "config.json").write_text(json.dumps(config | {"initializer_range": range_of_weights}))
    run_init("--model", str(folder), "--data", str(data), "--out", str(out))
    drawn = complete(read_run(out))
    assert (drawn.errors, drawn.run.model.vocabulary, drawn.run.model.context) == ((), 1024, 128)
    assert drawn.run.model.kind == kind
    assert drawn.model is not None
    assert drawn.model.activation_bytes > 0
    (folder / "model.safetensors").touch()  # files that cannot be read are explained at the start
    run_init("--model", str(folder), "--data", str(data), "--out", str(out), "--force")
    tuned = read_run(out)
    assert (tuned.model.kind, Path(tuned.model.first_weights).resolve()) == ("hf", folder)
    assert tuned.schedule.learning_rate < drawn.run.schedule.learning_rate / 5


def test_the_run_file_has_the_settings_of_an_adapter(tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    prepared(tmp_path / "data")
    out = tmp_path / "run.toml"
    run_init("--model", str(folder), "--lora", "--data", str(tmp_path / "data"), "--out", str(out))
    text, run = out.read_text(), read_run(out)
    assert isinstance(run.model, LoraSpec)
    assert run.model == LoraSpec(base=str(folder))
    for key in ("rank = 8 ", "alpha = 16.0 ", 'targets = ["all-linear"] '):
        assert re.search(rf"^{re.escape(key)} *# \w", text, re.MULTILINE)
    for card in (12, 16, 24):
        assert re.search(
            rf"^# .*a card of {card} GB.* a base of 32 bits, \d+ samples of [\d,]+ tokens at once", text, re.M
        )


def test_an_adapter_is_forecast_before_its_base_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, out = (
        base_folder(tmp_path / "base", torch.bfloat16, config=CONFIG | {"dtype": "bfloat16"}),
        tmp_path / "a.toml",
    )
    words = (
        "--model",
        str(base),
        "--lora",
        "--data",
        str(prepared(tmp_path / "data", vocabulary=96)),
        "--out",
        str(out),
    )
    with monkeypatch.context() as patched:
        patched.setattr(lora, "blob_of", None)  # a plan hashes no file
        run_init(*words)
    whole = complete(read_run(out))
    assert whole.errors == ()
    assert whole.model is not None
    assert "no safetensors" not in capsys.readouterr().out
    size = (base / "model.safetensors").stat().st_size
    assert whole.model.base_bytes == size
    (base / "model.safetensors").unlink()
    run_init(*words, "--force")
    said, shown = "has no safetensors yet; the figures follow from its config.json alone", capsys.readouterr().out
    assert f"note: model.base: {base} {said}" in shown
    assert "note: model.kind: lora. Each volunteer needs pip install 'thinwire[lora]'" in shown
    forecast = complete(read_run(out))
    assert [section for section, text in forecast.errors if said in text] == ["model"]
    assert len(forecast.errors) == 1
    assert forecast.model is not None
    assert 0.9 * size < forecast.model.base_bytes <= size  # the header is not counted
    assert replace(forecast.model, base_bytes=size) == whole.model
    with pytest.raises(SystemExit):
        check(parser().parse_args(["check", str(out)]))
    assert "16 bits" in capsys.readouterr().out


def test_the_memory_of_a_node_is_told_for_each_number_of_bits(tmp_path: Path) -> None:
    """With checkpoints, without which it may be several times as much."""
    base = base_folder(tmp_path / "base", config=CONFIG | {"vocab_size": 256})
    spec, _ = complete_model(LoraSpec(base=str(base)), lambda: None)
    run, facts = RunSpec(model=spec), facts_of(spec)
    found = base_memories(run, facts)
    assert list(found) == [32, 16, 8, 4]
    for memory in facts.memories:
        needed = PROGRAM_BYTES + trained_bytes(run, facts.size) + memory.frozen
        assert found[memory.bits or 0] == needed + memory.activations.peak(
            1, checkpoints=True, decoding=memory.decoding
        )
    assert node_memory_bytes(run, facts, 1) == found[4] < node_memory_bytes(run, facts, 2)


TEMPLATE = "{% for message in messages %}{{ message.role[0] }}{{ message.content }};{% endfor %}"
TEMPLATE += "{% if add_generation_prompt %}a{% endif %}"


def test_preferences_are_learned_by_an_adapter_alone(tmp_path: Path) -> None:
    model = saved(tmp_path / "model")
    rows = [{"prompt": f"{n}?", "chosen": "yes", "rejected": "no"} for n in range(60)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    settings: dict[str, Any] = {"chat_template": tmp_path / "template.jinja", "context": 47, "held_out": 0.2}
    sources.prepared(tmp_path / "data", tmp_path / "pairs.jsonl", **settings)
    words = ("--data", str(tmp_path / "data"), "--out", str(tmp_path / "run.toml"))
    for more in ((), ("--model", str(model)), ("--model", "llama-1m")):
        with pytest.raises(
            ConfigError, match="holds preferences, which only an adapter learns: give --lora, and as --mo"
        ):
            run_init(*words, *more)
    assert not (tmp_path / "run.toml").exists()
    run_init(*words, "--model", str(model), "--lora")
    assert complete(read_run(tmp_path / "run.toml")).errors == ()


def test_a_model_of_the_hubs_cache_is_named_and_its_nodes_fetch_it_from_the_hub(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_path / "data", vocabulary=96)
    base = base_folder(tmp_path / "base")
    (base / "tokenizer.json").write_text("{}")
    snapshot, out = cached(own_cache, "Qwen/Qwen3-8B", base), tmp_path / "run.toml"
    monkeypatch.chdir(tmp_path)
    assert find_tokenizer(Path("Qwen/Qwen3-8B"), "none").path == snapshot / "tokenizer.json"
    run_init("--model", "Qwen/Qwen3-8B", "--lora", "--data", "data", "--out", str(out))
    run = read_run(out)
    assert isinstance(run.model, LoraSpec)
    assert Path(run.model.base).samefile(snapshot)
    assert run.model.base_name == "Qwen/Qwen3-8B"
    assert run.model.base_urls == (f"https://huggingface.co/Qwen/Qwen3-8B/resolve/{REVISION}",)
    model, blobs = complete_model(run.model, lambda: None)
    folder = keep_blobs(tmp_path / "kept", blobs, lambda: None)
    assert [blob_of(folder.path(blob)) for blob in blobs] == list(blobs)
    assert [file.name for file in model.files] == ["model.safetensors"]  # type: ignore[attr-defined]
