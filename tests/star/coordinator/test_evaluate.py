"""Tests the command `thinwire-coordinator evaluate` on an existing run.

The tests of tasks run lm-eval itself, where it is installed: pip install -c constraints.txt lm_eval.
"""

from __future__ import annotations

import json
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.coordinator_command import Command
from support.sealed_run import make_run
from support.small import small_corpus
from thinwire_coordinator.cli.evaluate import TaskFigure, figures_of, read_text
from thinwire_coordinator.export.export import export
from thinwire_coordinator.hall.ledger.results import FILE, read_results

HAS_LM_EVAL = find_spec("lm_eval") is not None
WITH_LM_EVAL = pytest.mark.skipif(not HAS_LM_EVAL, reason="lm-eval is not installed: pip install lm_eval")
TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""


def evaluated(command: Command, run: Path, *more: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(command("evaluate", "--state-dir", run, "--json", *more))
    return found


def test_a_text_has_the_loss_of_the_held_out_set_that_it_is(run: Path, tmp_path: Path, command: Command) -> None:
    held_out = b"".join(file.content for file in small_corpus().files if file.held_out)
    (of_set,) = evaluated(command, run, "--samples", "100000")
    file = tmp_path / "text"
    file.write_bytes(held_out[: int(of_set["tokens"]) + 1])
    both = ("--samples", "100000", "--set", str(of_set["name"]), "--text", str(file))
    of_set, of_text = evaluated(command, run, *both)
    assert of_text["tokens"] == of_set["tokens"]
    assert of_text["loss"] == pytest.approx(of_set["loss"], rel=1e-5)
    assert of_text["bits_per_byte"] == pytest.approx(of_text["loss"] / math.log(2), rel=1e-3)


def test_a_step_is_what_it_was(run: Path, command: Command) -> None:
    losses = [evaluated(command, run, "--step", str(step))[0] for step in (0, 2)]
    assert [found["step"] for found in losses] == [0, 2]
    assert losses[0]["loss"] != losses[1]["loss"]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--set", "nothing"), "there is no held-out set 'nothing'; there are"),
        (("--text", "/nowhere"), "/nowhere: cannot be read"),
        (("--text", "/dev/null"), "is empty"),
        (("--step", "9"), "there is no step 9"),
        (("--tasks", " ,"), "names no task"),
        (("--limit", "3"), "--tasks-from and --limit need --tasks"),
        (("--tasks", "sums", "--tasks-from", "/nowhere"), "--tasks-from: /nowhere is no folder"),
        pytest.param(
            ("--tasks", "sums"),
            "this needs the package lm_eval: pip install 'thinwire[tasks]'",
            marks=pytest.mark.skipif(HAS_LM_EVAL, reason="lm-eval is installed"),
        ),
    ],
)
def test_what_cannot_be_evaluated_is_said(
    more: tuple[str, ...],
    says: str,
    run: Path,
    command: Command,
) -> None:
    assert says in command.refused("evaluate", "--state-dir", run, *more)


def test_a_text_is_the_one_that_prepare_makes_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes("\ufeffone\r\ntwo\r\n".encode())
    assert read_text(tmp_path / "text") == "one\r\ntwo\r\n"


def test_what_was_found_is_kept_without_the_folder_of_a_text(tmp_path: Path, command: Command) -> None:
    run, text = tmp_path / "run", tmp_path / "secret" / "text.txt"
    run.mkdir()
    text.parent.mkdir()
    text.write_text("to be or not to be")
    make_run(run, 2)
    for step in ("0", "2"):
        evaluated(command, run, "--step", step, "--text", str(text), "--set", "held_out")
    kept = read_results(run)
    assert [(one.kind, one.name, one.step, one.metric) for one in kept] == [
        (kind, name, step, "loss") for step in (0, 2) for kind, name in (("set", "held_out"), ("text", "text.txt"))
    ]
    assert "secret" not in (run / FILE).read_text()
    export(run, 2, tmp_path / "model", False, None)
    card = (tmp_path / "model" / "README.md").read_text()
    assert f"| text.txt | loss | {kept[-1].value:.4f} | 17 |" in card
    assert card.count("| text.txt |") == 1  # nothing of the other step
    assert "but for the evaluation above" in card


def test_a_state_directory_that_is_not_ours_is_evaluated_and_left_as_it_is(tmp_path: Path, command: Command) -> None:
    make_run(tmp_path, 2)
    (tmp_path / FILE).mkdir()  # root may write everywhere, but not into a folder
    assert "nats per token" in command("evaluate", "--state-dir", tmp_path)
    assert f"the results are not kept in {tmp_path}" in command.err


def test_of_a_group_with_figures_its_members_are_left_out() -> None:
    reply = {
        "results": {
            "one": {"alias": "one", "acc,none": 0.5, "acc_stderr,none": 0.1},
            "two": {"alias": "two", "exact_match,strict": 1.0, "exact_match_stderr,strict": "N/A"},
            "all": {"alias": "all", "acc,none": 0.75, "acc_stderr,none": 0.2},
            "of-tag": {"acc,none": 0.0},
        },
        "group_subtasks": {"all": ["one"], "without": ["two"], "of-tag": ["of-tag"]},
        "n-samples": {"two": {"original": 90, "effective": 9}},
    }
    assert list(figures_of(reply)) == [
        TaskFigure("two", "exact_match (strict)", 1.0, None, 9),
        TaskFigure("all", "acc", 0.75, 0.2, 0),
        TaskFigure("of-tag", "acc", 0.0, None, 0),
    ]


@WITH_LM_EVAL
def test_tasks_run_in_lm_eval(run: Path, tmp_path: Path, command: Command) -> None:
    rows = [{"question": f"{n}+1=", "choices": [str(n + 1), str(n + 8)], "answer": 0} for n in range(20)]
    (tmp_path / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sums.yaml").write_text(TASK.format(name="sums", data=tmp_path / "sums.jsonl"))
    (tmp_path / "gone.yaml").write_text(TASK.format(name="gone", data=tmp_path / "gone.jsonl"))
    asked = ("--tasks-from", str(tmp_path), "--step", "2")
    (figure,) = evaluated(command, run, *asked, "--tasks", "sums", "--limit", "12")
    assert (figure["name"], figure["metric"], figure["step"], figure["samples"]) == ("sums", "acc", 2, 12)
    assert 0 <= figure["value"] <= 1
    (kept,) = [one for one in read_results(run) if one.kind == "task"]
    assert (kept.name, kept.value, kept.stderr, kept.count) == ("sums", figure["value"], figure["stderr"], 12)
    for tasks, says in (
        ("sums,gone", "--tasks: gone cannot be opened; its data set may need internet access: "),
        ("sums,summs", "--tasks: lm-eval has no task 'summs'"),
    ):
        assert says in command.refused("evaluate", "--state-dir", run, *asked, "--tasks", tasks)
