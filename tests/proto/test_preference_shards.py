"""Shards of preferences: what a run reads of them, and which models and amendments are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.adapters import CONFIG, base_folder
from support.prepared import prepared
from support.small import MODEL
from thinwire_coordinator.hall.ledger.creation import create_state
from thinwire_proto.blobs import BlobFolder
from thinwire_proto.contract import Contract, RunSpec
from thinwire_proto.contract.data.prepared import Shard
from thinwire_proto.data.conversations import pairs_in
from thinwire_proto.data.manifest import BLOBS_FOLDER, MANIFEST_FILE, Manifest, read_manifest
from thinwire_proto.data.token_shards import TokenShards
from thinwire_proto.data.tokens import TokensKind
from thinwire_proto.errors import ConfigError, ContractError
from thinwire_proto.task import complete_model, task_of

CONTEXT, COUNT = 47, 60
TEMPLATE = (
    "{% for message in messages %}{{ message.role[0] }}{{ message.content }};{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)
BYTES = CONFIG | {"vocab_size": 256}
RECURRENT = {"model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 1, "vocab_size": 256}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [{"prompt": f"{n}?", "chosen": "yes" * (1 + n % 3), "rejected": "no"} for n in range(COUNT)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    settings: dict[str, Any] = {"chat_template": tmp_path / "template.jinja", "context": CONTEXT, "held_out": 0.2}
    prepared(tmp_path / "out", tmp_path / "pairs.jsonl", **settings)
    return tmp_path / "out"


def run_of(folder: Path, model: Any) -> RunSpec:
    run = RunSpec.model_validate({"model": model, "data": {"kind": "tokens", "folder": str(folder)}})
    return run.model_copy(update={"model": complete_model(run.model, lambda: None)[0]})


def adapter(folder: Path, config: dict[str, Any] = BYTES) -> dict[str, Any]:
    return {"kind": "lora", "base": str(base_folder(folder.parent / "base", config=config)), "context": CONTEXT}


def opened(folder: Path) -> tuple[TokenShards, Contract]:
    run = run_of(folder, adapter(folder))
    made = TokensKind().make(run, lambda: None)
    sections = {name: getattr(run, name) for name in RunSpec.model_fields} | {"data": made.spec}
    contract = Contract(**sections, parameters=task_of(run.model).manifest())
    return TokensKind().open(made.file, contract, BlobFolder(folder / BLOBS_FOLDER)), contract


def test_losses_are_weighted_by_pairs_and_have_no_bits_per_byte(folder: Path) -> None:
    data, _ = opened(folder)
    for blob in data.blobs():
        data.check(blob)
    (found,) = data.held_out_sets()
    assert (found.unit, found.bits_per_nat(CONTEXT)) == ("pair", None)
    held_out = data.held_out_weight(found.name, range(found.samples))
    assert found.samples < held_out < COUNT / 3
    (source,) = read_manifest(Manifest, (folder / MANIFEST_FILE).read_bytes()).sources
    rows = sum(shard.tokens for shard in source.train) // (CONTEXT + 1)
    assert rows < COUNT - held_out
    assert pairs_in(data.batch(range(rows))[1]) == COUNT - held_out


def test_a_tokenizer_of_bytes_has_the_chat_template(folder: Path) -> None:
    data, _ = opened(folder)
    assert data.has_conversations
    assert data.tokenizer.files()["chat_template.jinja"] == TEMPLATE.encode()


def test_a_model_without_a_frozen_base_is_refused(folder: Path) -> None:
    run = run_of(folder, MODEL | {"context": CONTEXT, "vocabulary": 256})
    with pytest.raises(ConfigError, match=r"holds preferences, .* model.kind = 'decoder' has none; choose 'lora'"):
        TokensKind().make(run, lambda: None)


def test_a_base_that_cannot_keep_the_two_of_a_pair_apart_is_refused(folder: Path) -> None:
    run = run_of(folder, adapter(folder, RECURRENT) | {"targets": ["in_proj"]})
    with pytest.raises(ConfigError, match="choose a base without a state that runs through a row"):
        TokensKind().make(run, lambda: None)


def test_a_start_refuses_another_model_before_it_reads_weights(folder: Path, tmp_path: Path) -> None:
    base = base_folder(tmp_path / "model", config=BYTES)
    (base / "model.safetensors").write_bytes(b"")
    model = {"kind": "hf", "weights": str(base), "context": CONTEXT}
    run = RunSpec.model_validate({"model": model, "data": {"kind": "tokens", "folder": str(folder)}})
    (tmp_path / "state").mkdir()
    with pytest.raises(ConfigError, match="holds preferences"):
        create_state(tmp_path / "state", run)


def test_text_is_not_measured_beside_preferences(folder: Path) -> None:
    data, contract = opened(folder)
    more = {"held_out": {"more": Shard(hash="0" * 64, size=100, tokens=100)}}
    amended = contract.model_copy(update={"data": contract.data.model_copy(update=more)})
    with pytest.raises(ContractError, match="more: the data hold preferences, and text has another loss"):
        data.amend(amended)
