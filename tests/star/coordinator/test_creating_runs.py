"""A run is created whole, or starts over; and an existing one is neither taken for new nor for another."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.sealed_run import make_run
from support.small import MODEL
from support.token_folder import write_tokens
from thinwire_coordinator.hall.access.settings import Order
from thinwire_coordinator.hall.ledger import creation
from thinwire_coordinator.hall.ledger.bodies import Bodies
from thinwire_coordinator.hall.ledger.creation import create_state
from thinwire_coordinator.hall.ledger.state_directory import check_run, open_state
from thinwire_proto.contract import RunSpec
from thinwire_proto.errors import ConfigError, Damaged, LedgerError
from thinwire_proto.task import task_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run that has sealed four steps."""
    make_run(tmp_path, 4)
    return tmp_path


@pytest.mark.parametrize("lost", ["contract.json", "ledger.sqlite"])
def test_remains_of_a_run_are_not_taken_for_a_new_run(folder: Path, lost: str) -> None:
    Bodies(str(folder / "updates"))
    (folder / lost).unlink()
    if lost == "contract.json":
        with pytest.raises(ConfigError, match=r"so it is what is left of a run; restore contract\.json"):
            create_state(folder, RunSpec())
    else:
        with pytest.raises(LedgerError, match=r"ledger\.sqlite is missing; restore it from the newest"):
            open_state(folder)
    assert (folder / "snapshots" / "0.safetensors").exists()


@pytest.mark.parametrize("what", ["body", "snapshot"])
def test_either_bodies_or_a_later_snapshot_show_that_the_ledger_is_lost(folder: Path, what: str) -> None:
    if what == "body":
        (folder / "snapshots" / "2.safetensors").unlink()
    else:
        shutil.rmtree(folder / "updates")
    (folder / "ledger.sqlite").unlink()
    for _ in range(2):
        with pytest.raises(Damaged, match=r"ledger\.sqlite is missing; restore it from the newest"):
            open_state(folder)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"data": {"kind": "tokens", "folder": "data"}}, "data.kind: corpus here, tokens there"),
        (
            {"model": {"kind": "timm"}, "data": {"kind": "images", "folder": "data"}},
            "data.kind: corpus here, images there",
        ),
        ({"model": {"kind": "hf", "config": {"model_type": "llama"}}}, "model.kind: decoder here, hf there"),
        ({"model": MODEL | {"context": 1 << 17}}, f"model.context: {MODEL['context']} here, {1 << 17} there"),
        ({"data": {"kind": "tokens", "folder": "data"}, "demo": {"k": 4}}, "demo.k: 96 here, 4 there"),
    ],
)
def test_a_run_file_that_makes_no_contract_of_this_run_is_refused_by_its_differences(
    folder: Path, document: dict[str, dict[str, object]], said: str
) -> None:
    """Of another kind than the run, or too long for its text; the run has no derived keys for it."""
    state = open_state(folder)
    try:
        with pytest.raises(ConfigError, match=r"leave --run out to continue this one") as raised:
            check_run(state, RunSpec.model_validate({"model": MODEL} | document))
    finally:
        state.close()
    assert said in str(raised.value)


def test_what_its_data_or_size_forbid_is_said_before_a_run_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tokens(tmp_path / "data", {"wiki": [400]}, {"wiki": [100]})
    data = {"kind": "tokens", "folder": str(tmp_path / "data")}
    with pytest.raises(ConfigError, match=r"model\.vocabulary must be at least"):
        create_state(tmp_path / "state", RunSpec.model_validate({"model": MODEL | {"vocabulary": 2}, "data": data}))
    run = RunSpec.model_validate({"model": MODEL | {"vocabulary": 300}, "data": data})
    order = Order("id", {"data.weights": {"wik": 1.0}})
    (tmp_path / "state").mkdir()
    with pytest.raises(ConfigError, match=r"the amendment at 5: .* no source 'wik' in the data"):
        create_state(tmp_path / "state", run, planned=[replace(order, at=5)])
    monkeypatch.setattr(creation, "CONTRACT_BYTES_MAX", 500)
    with pytest.raises(ConfigError, match=r"whose names and shapes take .* a contract has at most 500"):
        create_state(tmp_path / "state", RunSpec.model_validate({"model": MODEL}))
    assert not (tmp_path / "state" / "contract.json").exists()


def test_the_contract_says_what_the_first_parameters_were_drawn_with(tmp_path: Path) -> None:
    create_state(tmp_path, RunSpec.model_validate({"model": MODEL}))
    state = open_state(tmp_path)
    assert state.contract.first_seed is not None
    drawn = task_of(state.contract.model).initial_state(state.contract.first_seed)
    first = state.load_snapshot(0)
    assert all(torch.equal(first.tensors[name], tensor) for name, tensor in drawn.items())
