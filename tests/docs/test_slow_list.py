"""The list of slow tests names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from support.tiers import slow_tests

ROOT = Path(__file__).resolve().parents[2]


def missing(names: frozenset[str]) -> list[str]:
    """The names whose file or function does not exist."""
    found = []
    for name in sorted(names):
        path, _, function = name.partition("::")
        file = ROOT / path
        if not file.is_file() or not re.search(rf"^(async )?def {function or 'test_'}", file.read_text(), re.MULTILINE):
            found.append(name)
    return found


def test_each_slow_test_exists() -> None:
    assert slow_tests()
    assert missing(slow_tests()) == []
