"""Tests of the import of kinds: a broken package stops only the runs that may need it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NAME_TAKERS = Path(__file__).parents[1] / "support" / "name_takers.py"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages: an empty home package and a broken package."""
    (tmp_path / "empty_home").mkdir()
    (tmp_path / "empty_home" / "__init__.py").write_text("")
    install(tmp_path, "broken", "import a_module_that_is_missing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def install(site: Path, name: str, code: str) -> None:
    """Install a module that the entry point `NAME-kinds` names."""
    (site / f"{name}.py").write_text(code)
    about = site / f"{name}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[thinwire.kinds]\n{name}-kinds = {name}\n")


def test_a_broken_package_does_no_harm_to_a_kind_of_the_home_package(site: Path) -> None:
    code = """
import sys
from thinwire_node.kinds import KINDS
from thinwire_proto.contract import EXCHANGES
assert EXCHANGES.find("star") is not None
KINDS["star"]
"""
    path = [str(site), *(one for one in sys.path if one)]
    subprocess.run([sys.executable, "-c", f"import sys; sys.path[:] = {path!r}\n{code}"], check=True, timeout=60)


def test_a_script_cannot_take_a_name_of_this_projects_before_it_is_imported() -> None:
    done = subprocess.run([sys.executable, str(NAME_TAKERS)], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "topology: the name 'ring' is taken; choose another",
        "codec: the name 'sign' is taken; choose another",
        "planner: the name 'star' is taken; choose another",
        "exchange.kind: the name 'star' is taken; choose another",
        "model.kind: the name 'decoder' is taken; choose another",
        "exchange.kind: the name 'star' is taken; choose another",
    ]
