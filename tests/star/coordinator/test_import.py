"""Tests the command `import`, which begins a run from the weights in a folder."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.coordinator_command import Command
from support.sealed_run import make_run
from support.small import MODEL
from thinwire_coordinator.export.export import export_folder
from thinwire_coordinator.hall.ledger.state_directory import is_state, open_state
from thinwire_coordinator.star.replay import replica_at_head
from thinwire_proto.models.weights_folder import WEIGHTS


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A folder that `export` wrote, and the parameters in it."""
    folder = tmp_path_factory.mktemp("run")
    make_run(folder, 2)
    state = open_state(folder, read_only=True)
    replica = replica_at_head(state)
    export_folder(state, replica, folder / "out")
    return folder / "out", replica.tensors


def run_file(folder: Path, **model: object) -> Path:
    path = folder / "RUN.toml"
    lines = [f"{key} = {value}" for key, value in (MODEL | model).items()]
    path.write_text("\n".join(["[model]", *lines, "[schedule]", "steps = 3", "warmup_steps = 1"]))
    return path


def test_a_run_begins_with_the_exported_parameters_to_the_bit(
    exported: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path, command: Command
) -> None:
    weights, tensors = exported
    told = command("import", weights, "--run", run_file(tmp_path), "--state-dir", tmp_path / "a state")
    state = open_state(tmp_path / "a state", read_only=True)
    first = replica_at_head(state)
    assert first.step == 0
    assert first.tensors.keys() == tensors.keys()
    assert all(torch.equal(first.tensors[name], tensor) for name, tensor in tensors.items())
    lineage = state.contract.lineage
    assert lineage is not None
    assert (lineage.step, lineage.fingerprint) == (2, f"{first.model_fingerprint():016x}")
    assert state.contract.first_seed is None
    assert "they are those of step 2 of the run" in told
    assert state.contract.hash.hex() in told
    assert f"serve --state-dir '{tmp_path / 'a state'}'" in told
    assert "warning" not in told


def test_weights_that_were_changed_have_no_parent(
    exported: tuple[Path, dict[str, torch.Tensor]], tmp_path: Path, command: Command
) -> None:
    weights = shutil.copytree(exported[0], tmp_path / "changed")
    tensors = load_file(weights / WEIGHTS)
    next(iter(tensors.values())).mul_(2)
    save_file(tensors, weights / WEIGHTS, {"format": "pt"})
    command("import", weights, "--run", run_file(tmp_path), "--state-dir", tmp_path / "a state")
    assert open_state(tmp_path / "a state", read_only=True).contract.lineage is None


def _with_nan(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["model.norm.weight"][3] = torch.nan
    save_file(tensors, folder / WEIGHTS)


def _cut(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_with_nan, r"norm\.weight: has values that are not finite"),
        (_cut, "cannot be read as safetensors"),
        (shutil.rmtree, "is not a folder"),
    ],
    ids=["nan", "truncated", "no folder"],
)
def test_a_folder_that_does_not_fit_leaves_no_run(
    damage: Callable[[Path], None],
    words: str,
    exported: tuple[Path, dict[str, torch.Tensor]],
    tmp_path: Path,
    command: Command,
) -> None:
    weights, state = tmp_path / "weights", tmp_path / "state"
    shutil.copytree(exported[0], weights)
    damage(weights)
    error = command.refused("import", weights, "--run", run_file(tmp_path), "--state-dir", state)
    assert re.search(words, error), error
    assert not is_state(state)
