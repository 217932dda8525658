"""Tests the folder that `export` writes: its files, its model card, and that it appears whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch

from support.coordinator_command import Command
from support.sealed_run import make_run, node_key
from thinwire_coordinator.export.export import export_folder
from thinwire_coordinator.export.model_card import model_card
from thinwire_coordinator.export.model_files import write_model
from thinwire_coordinator.export.run_facts import RunFacts, facts_of
from thinwire_coordinator.hall.ledger.ledger import Ledger
from thinwire_coordinator.hall.ledger.state_directory import RunState, open_state
from thinwire_coordinator.star.kind import KIND
from thinwire_coordinator.star.replay import replica_at_head
from thinwire_proto.data.text import HELD_OUT
from thinwire_proto.errors import ConfigError, Damaged
from thinwire_proto.exact.replica import Replica, load_replica
from thinwire_proto.task import HuggingFaceModel, task_of

STEPS = 3
ADA = node_key(0).public.node_id
FILES = {
    *("README.md", "config.json", "generation_config.json", "model.safetensors", "thinwire.json"),
    *("tokenizer.json", "tokenizer_config.json"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunState, Replica]:
    folder = tmp_path_factory.mktemp("run")
    make_run(folder, STEPS)
    ledger = Ledger(folder / "ledger.sqlite")
    for step, loss in ((0, 5.5), (2, 4.0)):
        ledger.record_loss(step, HELD_OUT, loss, "coordinator")
    ledger.record_names({ADA: "Ada", node_key(1).public.node_id: "<b>|`[x](http://evil.example)\n"})
    ledger.close()
    state = open_state(folder, read_only=True)
    return state, replica_at_head(state)


@pytest.fixture
def facts(run: tuple[RunState, Replica]) -> RunFacts:
    return facts_of(*run)


def test_a_folder_has_the_files_of_transformers_and_its_bytes_depend_on_the_step_alone(
    run: tuple[RunState, Replica], tmp_path: Path
) -> None:
    one, again = tmp_path / "one", tmp_path / "again"
    for out in (one, again):
        export_folder(*run, out)
    assert {path.name for path in one.iterdir()} == FILES
    for name in FILES:
        assert (one / name).read_bytes() == (again / name).read_bytes(), name
        assert os.access(one / name, os.R_OK)
        assert (one / name).stat().st_mode == (one / "README.md").stat().st_mode
    mark = json.loads((one / "thinwire.json").read_text())
    assert mark["step"] == STEPS
    assert set(mark["files"]) == FILES - {"thinwire.json"}


def test_the_command_writes_any_step_to_a_folder_or_to_a_file(
    run: tuple[RunState, Replica], tmp_path: Path, command: Command
) -> None:
    state, head = run
    for step in (1, STEPS):
        out = tmp_path / f"{step}.safetensors"
        command("export", "--state-dir", state.folder, "--step", str(step), "--out", out)
        assert load_replica(state.contract, out).step == step
    assert load_replica(state.contract, out).state_hash() == head.state_hash()
    told = command("export", "--state-dir", state.folder, "--step", "1", "--out", tmp_path / "folder")
    assert json.loads((tmp_path / "folder" / "thinwire.json").read_text())["step"] == 1
    assert "step 1: " in told
    assert {path.name for path in tmp_path.iterdir()} == {"1.safetensors", "3.safetensors", "folder"}


def test_a_step_is_replayed_from_an_earlier_snapshot_if_the_newest_cannot_be_used(
    run: tuple[RunState, Replica], tmp_path: Path
) -> None:
    state, head = run
    folder = tmp_path / "run"
    shutil.copytree(state.folder, folder)
    first, newest = (folder / "snapshots" / f"{step}.safetensors" for step in (0, 2))
    whole = newest.read_bytes()
    newest.write_bytes(whole[:-1])
    assert KIND.model_at(open_state(folder, read_only=True), STEPS).state_hash() == head.state_hash()
    first_state = KIND.model_at(open_state(folder, read_only=True), 0)
    first_state.step = 2
    first_state.save(newest)  # whole, and not of this ledger
    assert KIND.model_at(open_state(folder, read_only=True), STEPS).state_hash() == head.state_hash()
    newest.write_bytes(whole[:-1])
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises(Damaged, match=r"no snapshot can be used: .*2\.safetensors .*; .*0\.safetensors .*restore one"):
        KIND.model_at(open_state(folder, read_only=True), STEPS)
    first.unlink()
    with pytest.raises(ConfigError, match="step 1 is no longer kept: the oldest snapshot is that of step 2"):
        KIND.model_at(open_state(folder, read_only=True), 1)
    newest.unlink()
    for step in (None, 0, STEPS):
        with pytest.raises(Damaged, match="no snapshot can be used: none exists"):
            KIND.model_at(open_state(folder, read_only=True), step)


def test_an_earlier_export_is_replaced_and_nothing_else_is(run: tuple[RunState, Replica], tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    export_folder(*run, out)  # empty: free to take
    (out / "README.md").write_text("old")
    export_folder(*run, out)
    assert (out / "README.md").read_text() != "old"
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"notes\.txt was added"):
        export_folder(*run, out)
    (out / "thinwire.json").unlink()
    with pytest.raises(ConfigError, match="not an earlier export"):
        export_folder(*run, out)
    with pytest.raises(ConfigError, match="is not a folder"):
        export_folder(*run, out / "notes.txt")
    assert (out / "notes.txt").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_export_that_fails_halfway_leaves_the_earlier_one(
    run: tuple[RunState, Replica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    export_folder(*run, out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}

    def full(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("thinwire_coordinator.export.export.model_card", full)
    for target in (out, tmp_path / "new"):
        with pytest.raises(ConfigError, match="No space left"):
            export_folder(*run, target)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("bytes_max", [1, 20_000, 60_000])
def test_a_large_model_is_written_in_several_files(
    run: tuple[RunState, Replica], tmp_path: Path, bytes_max: int
) -> None:
    state, replica = run
    task = task_of(state.contract.model)
    model = task.hugging_face(replica.tensors)
    write_model(model, None, tmp_path, bytes_max)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    sizes = [path.stat().st_size for path in tmp_path.glob("model-*.safetensors")]
    largest = max(tensor.nbytes for tensor in model.tensors.values())
    assert len(sizes) == len(set(index["weight_map"].values())) > 1
    assert max(sizes) < max(bytes_max, largest) + 4096
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in model.tensors.values())
    found = task.load(tmp_path)
    assert all(torch.equal(found[name], tensor) for name, tensor in replica.tensors.items())


def test_the_card_has_the_figures_of_the_ledger(facts: RunFacts, run: tuple[RunState, Replica]) -> None:
    state, replica = run
    card = model_card(facts, HuggingFaceModel({}, {}), text=True)
    front = card.split("---\n")[1]
    assert "library_name: transformers" in front
    assert "pipeline_tag: text-generation" in front
    for figure in (
        *(state.contract.hash.hex(), replica.head.hex(), f"{replica.model_fingerprint():016x}", "verify --state-dir"),
        *("6 contributions", f"{6 * 8 * 32:,} tokens", state.data.describe().split(":")[0]),
        *("| 0 | 5.5000 | 244.69 | 7.9348 |", "| 2 | 4.0000 | 54.60 | 5.7708 |", f"| `Ada` ({ADA[:8]}) | 1 | 8 |"),
    ):
        assert figure in card, figure


def test_the_use_in_the_card_is_python_that_runs(facts: RunFacts) -> None:
    for model in (HuggingFaceModel({}, {}), HuggingFaceModel({}, {}, {"base_model_name_or_path": "ada/base"})):
        card = model_card(facts, model, text=True)
        compile(card.partition("```python\n")[2].partition("```")[0], "card", "exec")
        assert ("PeftModel" in card) == (model.adapter is not None)
    assert "## Use" not in model_card(facts, HuggingFaceModel({}, {}), text=False)


def test_a_name_in_the_card_is_shown_as_it_is(facts: RunFacts) -> None:
    card = model_card(facts, HuggingFaceModel({}, {}), text=True)
    (line,) = [line for line in card.splitlines() if "evil" in line]
    assert line == rf"| `<b>\|'[x](http://evil.example)` ({node_key(1).public.node_id[:8]}) | 1 | 8 |"
