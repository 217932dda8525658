"""LoRA: only the adapter is trained, the base comes from blobs, and peft opens what is exported."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from support.adapters import CONFIG, base_folder, made
from support.toy_kinds import SlopesSpec
from support.two_nodes import Counting, TwoNodes
from thinwire_coordinator.hall.ledger.creation import create_state
from thinwire_proto import activations
from thinwire_proto.blobs import BlobFolder, Blobs
from thinwire_proto.contract import RunSpec, parse_contract, run_differences
from thinwire_proto.contract.models.lora import LoraSpec
from thinwire_proto.errors import ConfigError
from thinwire_proto.exact.replica import load_replica
from thinwire_proto.models.lora import Adapted, LoraTask
from thinwire_proto.models.transformers_models import build, canonical_config
from thinwire_proto.stateless import Stateless
from thinwire_proto.task import NO_BLOBS, complete_model


class Loaded(LoraTask):
    """The task on a machine that has the base."""

    def __init__(self, spec: LoraSpec, blobs: BlobFolder) -> None:
        super().__init__(spec)
        self._here = blobs

    def model(self, device: torch.device | str, blobs: Blobs = NO_BLOBS) -> Adapted:
        return super().model(device, self._here)


@pytest.mark.parametrize("multiplications", [0, activations.SMALL_MULTIPLICATIONS], ids=["without memory", "really"])
def test_the_memory_of_samples_is_known_before_the_base_is_here(
    multiplications: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task, contract, blobs = made(base_folder(tmp_path / "base"), tmp_path / "blobs")
    spec = contract.model
    assert isinstance(spec, LoraSpec)
    real = activations.activations_of(Loaded(spec, blobs), spec).whole
    monkeypatch.setattr(activations, "SMALL_MULTIPLICATIONS", multiplications)
    assert 100_000 < real <= activations.activations_of(task, spec).whole < 1.2 * real


@torch.no_grad()
def logits_of(model: Any, tokens: Tensor) -> Tensor:
    found: Tensor = model.eval()(input_ids=tokens[None]).logits[0, -1]
    return found


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
@pytest.mark.parametrize(
    ("dtype", "parts", "keys"),
    [
        (torch.float32, 3, {"base_name": "ada/base"}),
        (torch.bfloat16, 1, {"targets": ("q_proj", "v_proj"), "rank": 4, "dropout": 0.1}),
    ],
    ids=["all matrices, float32 in three files", "two matrices, bfloat16"],
)
def test_nodes_train_an_adapter_that_peft_opens(
    dtype: torch.dtype, parts: int, keys: dict[str, Any], tmp_path: Path
) -> None:
    from peft import PeftModel  # noqa: PLC0415 - takes seconds
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    base = base_folder(tmp_path / "base", dtype, parts)
    task, contract, blobs = made(base, tmp_path / "blobs", **keys)
    assert len(task.blobs()) == parts
    assert {part in p.name for p in contract.parameters for part in ("lora_A", "lora_B")} == {True, False}
    nodes = TwoNodes(contract, Counting(32), task.initial_state(1), blobs)
    nodes.train(8)
    nodes.check_exact()
    assert nodes.losses[-1] < 0.8 * nodes.losses[0]

    model = nodes.computes[0]._model.model
    assert isinstance(model, torch.nn.Module)
    frozen = {name: tensor for name, tensor in model.named_parameters() if not tensor.requires_grad}
    assert {tensor.dtype for tensor in frozen.values()} == {dtype}
    first = load_file(base / ("model.safetensors" if parts == 1 else "model-0.safetensors"))
    embedding = next(tensor for name, tensor in frozen.items() if name.endswith("embed_tokens.weight"))
    assert torch.equal(embedding, first["model.embed_tokens.weight"])

    parameters = nodes.trainers[0].replica.tensors
    exported = task.hugging_face(parameters, blobs)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    assert exported.adapter is not None
    assert exported.adapter["base_model_name_or_path"] == keys.get("base_name")
    (adapter / "adapter_config.json").write_text(json.dumps(exported.adapter))
    save_file(exported.tensors, adapter / "adapter_model.safetensors", {"format": "pt"})
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
    tokens = torch.randint(0, 96, (20,), generator=torch.Generator().manual_seed(1))
    before = logits_of(plain, tokens)
    theirs = logits_of(PeftModel.from_pretrained(plain, adapter), tokens)
    with torch.no_grad():
        ours = Stateless(task.model("cpu", blobs)).next_logits(parameters, tokens)
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    assert (ours - before).abs().max() > 1e-2 * theirs.abs().max()
    loaded = task.load(adapter)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in parameters.items())

    merged = task.merged(parameters, blobs)
    whole = tmp_path / "merged"
    whole.mkdir()
    (whole / "config.json").write_text(json.dumps(merged.config))
    save_file(merged.tensors, whole / "model.safetensors", {"format": "pt"})
    opened, report = AutoModelForCausalLM.from_pretrained(whole, output_loading_info=True)
    assert not any(report.values())
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(plain, adapter)
    expected = logits_of(adapted, tokens)
    error = (logits_of(opened, tokens) - expected).abs().max() / expected.abs().max()
    assert error < (1e-5 if dtype == torch.float32 else 0.05)
    exact = adapted.merge_and_unload().state_dict()
    for name, tensor in opened.state_dict().items():
        assert torch.equal(tensor, exact[name].to(dtype)), f"{name}: rounded once, to the dtype of the base's files"


def test_a_merged_model_is_in_the_dtype_of_the_base(tmp_path: Path) -> None:
    for dtype, second, said in [(torch.float16, torch.float16, "float16"), (torch.bfloat16, torch.float32, "float32")]:
        base = base_folder(tmp_path / f"{dtype}", dtype)
        tensors = load_file(base / "model.safetensors")
        tensors["model.norm.weight"] = tensors["model.norm.weight"].to(second)
        save_file(tensors, base / "model.safetensors", {"format": "pt"})
        task, _, blobs = made(base, tmp_path / f"blobs {dtype}")
        merged = task.merged(task.initial_state(1), blobs)
        assert merged.config["dtype"] == said
        assert {str(tensor.dtype) for tensor in merged.tensors.values()} == {f"torch.{said}"}


@pytest.mark.parametrize("tied", [True, False])
def test_models_of_one_process_share_the_base_and_nothing_else(tied: bool, tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base", parts=2, config=CONFIG | {"tie_word_embeddings": tied})
    task, _, blobs = made(base, tmp_path / "blobs")
    first = task.model("cpu", blobs)
    second = task.model("cpu", blobs)
    one, other = dict(first.named_parameters()), dict(second.named_parameters())
    assert one.keys() == other.keys()
    assert all((parameter is other[name]) != parameter.requires_grad for name, parameter in one.items())
    tokens, parameters = torch.randint(0, 96, (20,)), task.initial_state(1)
    with torch.no_grad():
        logits = [Stateless(model).next_logits(parameters, tokens) for model in (first, second)]
    assert torch.equal(*logits)
    kept = {name: parameter.clone() for name, parameter in other.items() if not parameter.requires_grad}
    task.merged(parameters, blobs)
    assert all(torch.equal(other[name], tensor) for name, tensor in kept.items())
    frozen = [weakref.ref(parameter) for parameter in one.values() if not parameter.requires_grad]
    del first, second, one, other
    gc.collect()
    assert not any(found() is not None for found in frozen)
    assert isinstance(task.model("cpu", blobs), torch.nn.Module)


def test_an_exported_config_tells_older_programs_its_angles(tmp_path: Path) -> None:
    """Programs for transformers 4 read `rope_theta` and `rope_scaling`, and take 10,000 where they are missing."""
    rope = {"rope_type": "linear", "factor": 2.0}
    config = CONFIG | {"rope_theta": 500_000.0, "rope_scaling": dict(rope)}
    task, contract, blobs = made(base_folder(tmp_path / "base", config=config), tmp_path / "blobs")
    merged = task.merged(task.initial_state(1), blobs).config
    assert (merged["rope_theta"], merged["rope_scaling"]) == (500_000.0, rope)
    assert merged["rope_parameters"] == rope | {"rope_theta": 500_000.0}
    assert isinstance(contract.model, LoraSpec)
    assert canonical_config(merged, "merged") == contract.model.config


def test_a_new_adapter_changes_nothing(tmp_path: Path) -> None:
    task, contract, blobs = made(base_folder(tmp_path / "base"), tmp_path / "blobs")
    first = task.initial_state(7)
    assert list(first) == [parameter.name for parameter in contract.parameters]
    for name, tensor in first.items():
        if ".lora_B." in name:
            assert not tensor.any()
        else:
            bound = tensor.shape[1] ** -0.5  # of peft: uniform with a = √5
            assert 0.9 * bound < tensor.abs().max() <= bound
    tokens = torch.arange(20)
    with torch.no_grad():
        ours = Stateless(task.model("cpu", blobs)).next_logits(first, tokens)
        base = build(canonical_config(CONFIG, "config"), "cpu")
        base.load_state_dict(load_file(tmp_path / "base" / "model.safetensors"), strict=False)
        assert torch.allclose(ours, logits_of(base, tokens), atol=1e-5)


def test_the_contract_names_the_base_by_its_hash(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base")
    _, contract, _ = made(base, tmp_path / "blobs")
    assert parse_contract(contract.written) == contract
    assert str(tmp_path) not in contract.written.decode()
    run = RunSpec.model_validate(
        {"model": LoraSpec(base=str(base)), "data": SlopesSpec(), "schedule": contract.schedule}
    )
    assert run_differences(contract, run) == []
    other = run.model_copy(update={"model": LoraSpec(base=str(base), rank=9)})
    assert run_differences(contract, other) == ["model.rank: 8 here, 9 there"]


def test_the_coordinator_keeps_the_base_and_starts_from_an_adapter(tmp_path: Path) -> None:
    base = base_folder(tmp_path / "base")
    model = LoraSpec(base=str(base))
    (tmp_path / "state").mkdir()
    create_state(tmp_path / "state", RunSpec(model=model, data=SlopesSpec()))
    contract = parse_contract((tmp_path / "state" / "contract.json").read_bytes())
    (kept,) = (tmp_path / "state" / "blobs").iterdir()
    assert kept.read_bytes() == (base / "model.safetensors").read_bytes()
    first = load_replica(contract, tmp_path / "state" / "snapshots" / "0.safetensors")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    save_file(first.tensors, adapter / "adapter_model.safetensors")
    again = RunSpec(model=model.model_copy(update={"weights": str(adapter)}), data=SlopesSpec())
    (tmp_path / "second").mkdir()
    create_state(tmp_path / "second", again)
    contract = parse_contract((tmp_path / "second" / "contract.json").read_bytes())
    second = load_replica(contract, tmp_path / "second" / "snapshots" / "0.safetensors")
    assert second.state_hash() == first.state_hash()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"base": ""}, r"model\.base: a folder .* is needed"),
        ({"targets": ("qq_proj",)}, r"model\.targets: .*qq_proj.*; the base has .*q_proj, up_proj, v_proj"),
        ({"context": 49}, "context is 49; .* at most 48"),
    ],
)
def test_a_wrong_run_file_is_refused(keys: dict[str, Any], said: str, tmp_path: Path) -> None:
    spec = LoraSpec(**{"base": str(base_folder(tmp_path / "base"))} | keys)
    with pytest.raises(ConfigError, match=said):
        LoraTask(complete_model(spec, lambda: None)[0]).manifest()  # type: ignore[arg-type]
