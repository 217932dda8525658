"""Small runs of adapters: a folder with a base, and a contract with its blobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from support.toy_kinds import SlopesSpec
from thinwire_coordinator.hall.ledger.creation import keep_blobs
from thinwire_proto.blobs import BlobFolder
from thinwire_proto.contract import Contract, RunSpec
from thinwire_proto.contract.models.lora import LoraSpec
from thinwire_proto.models.lora import LoraTask
from thinwire_proto.models.transformers_models import build, canonical_config
from thinwire_proto.task import complete_model

CONFIG: dict[str, Any] = {
    **{"model_type": "qwen3", "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "intermediate_size": 80, "max_position_embeddings": 48, "head_dim": 16},
    "tie_word_embeddings": True,
}


def base_folder(
    folder: Path, dtype: torch.dtype = torch.float32, parts: int = 1, config: dict[str, Any] = CONFIG, scale: float = 4
) -> Path:
    """A folder with a base of one or several files. scale: of values that are as if drawn for training."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(1)
        model = build(canonical_config(config, "config"), "cpu", draw=True)
    tensors = {name: (scale * tensor.detach()).to(dtype) for name, tensor in model.named_parameters()}
    if parts == 1:
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        return folder
    files = {name: f"model-{number % parts}.safetensors" for number, name in enumerate(tensors)}
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, folder / file, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder


def made(base: Path, blobs: Path, **keys: Any) -> tuple[LoraTask, Contract, BlobFolder]:
    """Return the parts of a new run: the task, the contract and the folder of blobs."""
    schedule = {"learning_rate": 0.02, "warmup_steps": 1, "steps": 100}
    run = {"model": LoraSpec(base=str(base), **keys), "data": SlopesSpec(), "schedule": schedule}
    spec, paths = complete_model(RunSpec.model_validate(run).model, lambda: None)
    assert isinstance(spec, LoraSpec)
    task = LoraTask(spec)
    contract = Contract.model_validate(run | {"model": spec, "parameters": task.manifest()})
    return task, contract, keep_blobs(blobs, paths, lambda: None)
