"""The threat model names, for each promise, tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/threat-model.md").read_text(encoding="utf-8")
PROMISES = re.findall(r"^\| (?!promise|-)(.+?) \| ((?:`tests/\S+`\s?)*) \|$", PAGE, flags=re.MULTILINE)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@pytest.mark.parametrize(("promise", "named"), PROMISES)
def test_each_promise_names_tests_that_exist(promise: str, named: str) -> None:
    tests = TEST.findall(named)
    assert tests, promise
    for file, name in tests:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert re.search(rf"^(async )?def {name}\(", text, flags=re.MULTILINE), f"{file} has no {name}"
