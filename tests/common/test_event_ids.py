"""Tests that the table of events matches the code that logs them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from thinwire_common.event_ids import EVENTS, FIELDS, RESERVED

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [ROOT / "coordinator" / "thinwire_coordinator", ROOT / "node" / "thinwire", ROOT / "node" / "thinwire_node"]


def calls_of_tell() -> Iterator[tuple[str, ast.Call]]:
    """Each call of the function `tell`, with its file and line."""
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            for found in ast.walk(ast.parse(path.read_text())):
                if isinstance(found, ast.Call) and isinstance(found.func, ast.Name) and found.func.id == "tell":
                    yield f"{path.relative_to(ROOT)}:{found.lineno}", found


def test_the_code_and_the_table_have_the_same_events() -> None:
    used = set()
    for place, call in calls_of_tell():
        given = call.args[2]
        assert isinstance(given, ast.Constant), f"{place}: the id must be written in the call"
        name = str(given.value)
        assert name in EVENTS, f"{place}: {name} is not in the table"
        given_fields = {keyword.arg for keyword in call.keywords} - {"exc_info"}  # which is `exception` in the line
        assert given_fields == set(EVENTS[name].fields), f"{place}: {name}"
        used.add(name)
    assert EVENTS.keys() == used


def test_each_event_of_the_table_is_explained() -> None:
    for name, event in EVENTS.items():
        assert event.meaning.endswith("."), name
        assert set(event.fields) <= FIELDS.keys(), name
        assert not set(event.fields) & set(RESERVED), name
