"""Each exchange can be removed: its folders and its lines in the registries are deleted, and the other one works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("proto", "coordinator", "node", "planner")
FOLDERS = {
    "star": (
        "coordinator/thinwire_coordinator/star",
        "coordinator/thinwire_coordinator/planning/star",
        "node/thinwire_node/star",
        "tests/star",
    ),
    "gossip": (
        "coordinator/thinwire_coordinator/gossip",
        "coordinator/thinwire_coordinator/planning/gossip",
        "node/thinwire/gossip",
        "node/thinwire_node/gossip",
        "planner/thinwire_planner/methods/gossip.py",
        "proto/thinwire_proto/contract/exchanges/gossip.py",
        "proto/thinwire_proto/gossip",
        "tests/gossip",
    ),
}
"""What belongs to one exchange alone. The section `exchange` of a star run stays: it is the contract's default."""
REGISTRIES = (
    "coordinator/thinwire_coordinator/kinds.py",
    "coordinator/thinwire_coordinator/planning/exchanges.py",
    "node/thinwire_node/kinds.py",
    "node/thinwire_node/rules.py",
    "pyproject.toml",
)
"""Files with a line, or in the settings of import-linter several, for each exchange."""
LINE = r'^ +"[\w" :.]*\b{}\b[^\n]*",?\n'
EMPTY = r"\[\[tool\.importlinter\.contracts\]\]\n[^\[]*layers = \[\n\]\n"
"""A contract of import-linter that has lost all its layers."""
ALL = ("thinwire_proto", "thinwire_coordinator", "thinwire_node", "thinwire_planner", "thinwire")
TESTS = {
    "star": ("tests/star/coordinator/test_rounds.py", "tests/star/coordinator/test_swarm.py"),
    "gossip": ("tests/gossip/coordinator/test_deposits.py", "tests/gossip/node/test_gossip_iterations.py"),
}
"""Some of the tests of each exchange."""
NO_OTHERS = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]
"""
"""Otherwise an editable install finds in the checkout what the copy has lost."""
IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for found in pkgutil.walk_packages(package.__path__, f"{name}."):
        if "triton" not in found.name and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
"""


def without(exchange: str, folder: Path) -> Path:
    """A copy of the tree without an exchange."""
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    for name in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy2(ROOT / name, path)
    for name in FOLDERS[exchange]:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in REGISTRIES:
        text = re.sub(LINE.format(exchange), "", (folder / name).read_text(), flags=re.MULTILINE)
        (folder / name).write_text(re.sub(EMPTY, "", text))
    (folder / "sitecustomize.py").write_text(NO_OTHERS)
    return folder


def run(tree: Path, *command: str, timeout_s: float = 300.0) -> str:
    """Run a command in a tree, with its packages and no others."""
    path = os.pathsep.join(str(tree / package) for package in (*PACKAGES, "tests", "."))
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=tree, env=environment, check=False, capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(("removed", "left"), [("star", "gossip"), ("gossip", "star")])
@pytest.mark.timeout(900)
def test_the_other_exchange_works_without_it(tmp_path: Path, removed: str, left: str) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout of git, which names the files of the tree")
    tree = without(removed, tmp_path)
    run(tree, sys.executable, "-c", IMPORT_ALL, *ALL)
    run(tree, str(Path(sys.executable).parent / "lint-imports"), "--no-cache")
    rounds = "8" if left == "star" else "80"
    told = run(tree, sys.executable, "-m", "deploy.local_swarm", "--nodes", "2", "--rounds", rounds, "--exchange", left)
    assert "verify: " in told
    run(tree, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS[left])
