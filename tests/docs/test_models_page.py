"""The examples in docs/models.md work: each run file is read, and the package trains as an installed entry point."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from thinwire_coordinator.planning.problems import read_run

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
RUNS = [text for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL) if text.startswith("[model]")]
TRAINS = """
from support.two_nodes import Counting, TwoNodes
from support.toy_kinds import SlopesSpec
from thinwire_proto.contract import Contract, RunSpec
from thinwire_proto.task import task_of
schedule = {"learning_rate": 0.01, "warmup_steps": 1}
run = RunSpec.model_validate({"model": {"kind": "gru", "width": 64}, "schedule": schedule})
task = task_of(run.model)
sections = {"model": run.model, "data": SlopesSpec(), "schedule": run.schedule, "parameters": task.manifest()}
nodes = TwoNodes(Contract.model_validate(sections), Counting(128), task.initial_state(1))
nodes.train(8)
nodes.check_exact()
assert nodes.losses[-1] < 0.8 * nodes.losses[0], nodes.losses
"""


@pytest.mark.parametrize("text", RUNS, ids=lambda text: str(RUNS.index(text)))
def test_a_run_file_of_the_page_is_read(text: str, tmp_path: Path) -> None:
    path = tmp_path / "RUN.toml"
    path.write_text(text)
    said = re.findall(r'^(?:kind|preset) = "([a-z]+)', text, re.MULTILINE)
    assert read_run(path).model.kind == said[0]


def test_the_page_has_a_run_file_for_each_kind() -> None:
    kinds = " ".join(re.findall(r'kind = "([a-z]+)"', "".join(RUNS)))
    assert kinds == "hf hf lora timm"


def test_the_package_of_the_page_trains(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (name, group) = re.findall(r'entry-points\."(.*?)"\]\ngru = "(.*?)"', PAGE)[0]
    assert (name, group) == ("thinwire.kinds", "my_gru")
    (tmp_path / "my_gru.py").write_text(code)
    about = tmp_path / "my_gru-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my_gru\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[thinwire.kinds]\ngru = my_gru\n")
    path = [str(tmp_path), *(one for one in sys.path if one)]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}\n{TRAINS}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
