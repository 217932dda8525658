"""Runs the examples on two ranks: for Hugging Face's Trainer, Accelerate, Lightning and torchrun, and the notebook."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from support import example_ranks

EXAMPLES = Path(__file__).parents[2] / "examples"
STEPS = 6
LOSS = re.compile(r"step +(\d+)  loss (\d+\.\d+)  sent ([\d,]+) bytes")


NAMES = ("hf_trainer_demo", "accelerate_demo", "lightning_demo")
BEGUN, RESUMED = " until the half", " from there"
RESUMABLE = ("hf_trainer_demo", "lightning_demo")
FINGERPRINT = re.compile(r"rank \d: fingerprint ([0-9a-f]{16})")


@pytest.fixture(scope="module")
def printed_by(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the output of each rank, by example."""
    folder = tmp_path_factory.mktemp("examples")
    given = dict.fromkeys(NAMES, f"--steps {STEPS}")
    for name in RESUMABLE:
        given[name] += f" --out {folder}/{name}/whole"
        given[name + BEGUN] = f"--steps {STEPS // 2} --save-every {STEPS // 2} --out {folder}/{name}/resumed"
        given[name + RESUMED] = f"--steps {STEPS} --out {folder}/{name}/resumed --resume"
    scripts = [f"{EXAMPLES}/{name.partition(' ')[0]}.py" for name in given]
    arguments = [part for pair in zip(scripts, given.values(), strict=True) for part in pair]
    command = [sys.executable, example_ranks.__file__, str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = json.loads(done.stdout.splitlines()[-1])
    return dict(zip(given, found, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_ranks_keep_their_gradients_and_end_equal(printed_by: dict[str, list[str]], name: str) -> None:
    texts = printed_by[name]
    printed = LOSS.findall(texts[0])
    assert [int(step) for step, _, _ in printed] == list(range(1, STEPS + 1))
    losses = [float(loss) for _, loss, _ in printed]
    assert losses[-1] < losses[0] - 0.2
    sent = [int(count.replace(",", "")) for _, _, count in printed]
    assert 0 < sent[0] < sent[-1]
    fingerprints = FINGERPRINT.findall("".join(texts))
    assert len(fingerprints) == example_ranks.RANKS
    assert len(set(fingerprints)) == 1
    gradients = [re.findall(r"^gradients ([0-9a-f]{8})$", text, re.MULTILINE) for text in texts]
    assert [len(found) for found in gradients] == [1, 1]
    assert gradients[0] != gradients[1]  # nobody has averaged them


@pytest.mark.parametrize("name", RESUMABLE)
def test_a_resumed_run_ends_as_the_uninterrupted_one(printed_by: dict[str, list[str]], name: str) -> None:
    """The frameworks themselves save the optimizer of the first rank alone."""
    runs = (name, name + BEGUN, name + RESUMED)
    whole, begun, resumed = (set(FINGERPRINT.findall("".join(printed_by[run]))) for run in runs)
    assert resumed == whole != begun
    assert [int(step) for step, _, _ in LOSS.findall(printed_by[name + RESUMED][0])] == [4, 5, 6]


def test_the_samples_of_lightnings_ranks_go_on_after_a_pass() -> None:
    spec = spec_from_file_location("lightning_demo", EXAMPLES / "lightning_demo.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module := module_from_spec(spec))

    def taken(first: int, count: int) -> list[list[int]]:
        return [list(islice(module.EndlessOrder(10, first, 2, rank), count)) for rank in range(2)]

    whole = taken(0, 15)
    passes = [sorted(whole[0][start : start + 5] + whole[1][start : start + 5]) for start in (0, 5, 10)]
    assert passes == [list(range(10))] * 3
    assert whole[0][:5] != whole[0][5:10]
    assert taken(7, 8) == [one[7:] for one in whole]


def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat  # noqa: PLC0415 - slow
    from nbclient import NotebookClient  # noqa: PLC0415

    for variable, value in (("STEPS", "8"), ("PYDEVD_DISABLE_FILE_VALIDATION", "1")):
        monkeypatch.setenv(variable, value)
    read: Any = nbformat.read  # has no types
    notebook = read(EXAMPLES / "two_ranks.ipynb", as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    text = "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")
    found = re.findall(r"(\w+) +loss (\d+\.\d+) to (\d+\.\d+), ([\d,]+) bytes sent, ranks equal: (\w+)", text)
    assert [name for name, *_ in found] == ["DeMo", "AdamW"]
    for _, first, last, _, equal in found:
        assert float(last) < float(first)
        assert equal == "True"
    few, many = (int(sent.replace(",", "")) for *_, sent, _ in found)
    assert 20 * few < many
    assert any("image/png" in output.get("data", {}) for output in outputs)


RANKS = 2


def test_the_example_keeps_ranks_equal_and_resumes_bit_for_bit(tmp_path: Path) -> None:
    """Runs four steps, then resumes from the checkpoint in the middle and compares the fingerprints."""
    whole = example("torchrun_demo.py", tmp_path, "--save-every", "2")
    assert "of all 2 ranks are equal bit for bit" in whole
    for path in (tmp_path / "step-00000004").iterdir():
        path.unlink()
    resumed = example("torchrun_demo.py", tmp_path, "--resume")
    assert "step    3" in resumed
    assert "step    2" not in resumed
    assert resumed.splitlines()[-1] == whole.splitlines()[-1]


def test_without_a_centre_a_resumed_run_ends_as_the_uninterrupted_one(tmp_path: Path) -> None:
    """The ranks differ; each one's held-out loss is the same in both runs, and so is that of their mean. Matrices take
    steps of Muon, and all else those of AdamW."""
    whole = held_out(example("torchrun_gossip.py", tmp_path, "--muon", "--save-every", "2"))
    assert len(whole) == RANKS + 1
    for path in (tmp_path / "step-00000004").iterdir():
        path.unlink()
    assert held_out(example("torchrun_gossip.py", tmp_path, "--muon", "--resume")) == whole


def held_out(printed: str) -> set[str]:
    """(rank, loss) of each rank, and the loss of the mean."""
    found = re.findall(r"(rank \d): held-out loss (\d+\.\d+), of the mean of all ranks (\d+\.\d+)", printed)
    return {f"{rank} {alone}" for rank, alone, _ in found} | {mean for _, _, mean in found}


def test_sites_end_equal_and_resume_with_another_number_of_ranks(tmp_path: Path) -> None:
    """Two sites of two ranks, which share the parameters; the last run has one rank a site, and so other samples."""
    whole = example("fsdp_demo.py", tmp_path, "--save-every", "2", "--accumulate", "2", ranks=4)
    assert "the parameters of all 2 sites are equal bit for bit" in whole
    ends = []
    for ranks in (4, 2):
        (tmp_path / "step-00000004" / ".metadata").unlink()
        ends.append(example("fsdp_demo.py", tmp_path, "--resume", "--accumulate", "2", ranks=ranks))
    same, fewer = ends
    assert "step    3" in same
    assert "step    2" not in same
    assert same.splitlines()[-1] == whole.splitlines()[-1]
    assert "the parameters of all 2 sites are equal bit for bit" in fewer
    assert fewer.splitlines()[-1] != whole.splitlines()[-1]


@pytest.mark.skipif(find_spec("torchtitan") is None, reason="needs torchtitan; docs/optimizer.md says how to get it")
def test_torchtitan_trains_on_two_sites_that_end_equal(tmp_path: Path) -> None:
    script = [str(EXAMPLES / "torchtitan_demo.py"), "--steps", "4", "--samples", "1"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", *script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "the parameters of all 2 sites are equal bit for bit" in done.stdout
    losses = [float(loss) for loss in re.findall(r"step: .*?loss: \D*(\d+\.\d+)", done.stdout + done.stderr)]
    assert losses[-1] < losses[0] - 0.5


def example(name: str, folder: Path, *arguments: str, ranks: int = RANKS) -> str:
    script = Path(__file__).parents[2] / "examples" / name
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(script)]
    few = ["--steps", "4", "--samples", "1", "--checkpoints", str(folder)]
    done = subprocess.run([*command, *few, *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout
