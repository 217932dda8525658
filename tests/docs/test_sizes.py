"""Files and functions are as short as CONTRIBUTING.md says."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RULE = r"Files have one reason to exist and at most (\d+) lines, functions at most (\d+)\."


def too_long(name: str, source: str, file_max: int, function_max: int) -> Iterator[str]:
    if (lines := source.count("\n")) > file_max:
        yield f"{name}: {lines} lines"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > function_max:
                yield f"{name}: {node.name} has {lines} lines"


def test_files_and_functions_are_short() -> None:
    found = re.search(RULE, (ROOT / "CONTRIBUTING.md").read_text())
    assert found
    file_max, function_max = map(int, found.groups())
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split() if "_pb2" not in name and (ROOT / name).is_file()]
    assert len(names) > 100
    long = [line for name in names for line in too_long(name, (ROOT / name).read_text(), file_max, function_max)]
    assert long == []


def test_what_is_too_long_is_found() -> None:
    source = "def short():\n    pass\n\n\nclass A:\n    async def long(self):\n        x = 1\n        return x\n"
    assert list(too_long("a.py", source, 8, 2)) == ["a.py: long has 3 lines"]
    assert list(too_long("a.py", source, 7, 3)) == ["a.py: 8 lines"]
