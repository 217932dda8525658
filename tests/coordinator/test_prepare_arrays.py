"""Prepare reads an array of JSON element by element, and reports what is wrong in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.reading import read
from thinwire_coordinator.prepare.problems import Counts
from thinwire_coordinator.prepare.readers.opening import BUFFER_BYTES

LONG = "Grüße. " * (BUFFER_BYTES // 3)
TEXTS = ["one", LONG, "two\n]", *(f"Text {number}" for number in range(50_000))]


@pytest.mark.parametrize("spaces", [{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])
def test_each_element_of_an_array_is_a_document(tmp_path: Path, spaces: dict[str, object]) -> None:
    rows = [{"text": text, "more": [1, {"text": "no"}]} for text in TEXTS]
    (tmp_path / "a.json").write_text(json.dumps(rows, **spaces) + "\n")  # type: ignore[arg-type]
    found = read(tmp_path)
    assert found.documents == TEXTS
    assert found.counts == Counts()


@pytest.mark.parametrize(
    ("content", "documents", "said"),
    [
        ('[{"text": "a"}, {"text": "b"}', ["a", "b"], "after element 2: the array has no end"),
        ('[{"text": "a"}, {"text": "b', ["a"], "after element 1: is not JSON: Unterminated string"),
        ('[{"text": "a"} {"text": "b"}]', ["a"], "after element 1: '{' is not JSON there"),
        ('[{"text": "a"}, {text: "b"}, {"text": "c"}]', ["a"], "after element 1: is not JSON: Expecting property name"),
        ('[{"text": "a"}, 5, {"text": "c"}]', ["a", "c"], "element 2: is not an object but int"),
        ('[{"text": "a"}, {"body": "b"}, {"text": "c"}]', ["a", "c"], "element 2: has no key 'text'"),
        ('[{"text": "a"}, {"text": 5}]', ["a"], "element 2: 'text' is not text but int"),
        ('[{"text": "a"}]\n[{"text": "b"}]', ["a"], "after element 1: the array has ended, and there is more"),
        ('[{"text": "a"}, ' + "[" * 100_000, ["a"], "after element 1: is nested too deeply"),
    ],
)
def test_what_is_wrong_in_an_array_is_reported(tmp_path: Path, content: str, documents: list[str], said: str) -> None:
    (tmp_path / "a.json").write_text(content)
    found = read(tmp_path)
    assert found.documents == documents
    assert found.counts == Counts(bad=1)
    assert said in found.said[0]
