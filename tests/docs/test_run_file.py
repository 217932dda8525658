"""docs/run-file.md: every key of every section and kind is there, with a description and the default of the code."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from thinwire_proto.contract import RunSpec, Section
from tools.generated import DOCS
from tools.run_reference import descriptions, keys, kinds, values

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TABLES = list(kinds())


def shown(section: str, kind: str) -> dict[str, Any]:
    """The defaults in the page's table of a section, of the keys that a kind has; without those that are required."""
    heading = f"## [{section}]"
    _, found, rest = (DOCS / "run-file.md").read_text(encoding="utf-8").partition(f"\n{heading}\n")
    assert found, heading
    _, found, table = re.split(r"^##", rest, maxsplit=1, flags=re.MULTILINE)[0].partition("\n| key |")
    assert found or not any(keys(spec) for name, _, spec in TABLES if name == section), heading
    rows = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells or not cells[0].startswith("`"):
            continue
        if kind and f"`{kind}`" not in cells[1].split(", "):
            continue
        rows[cells[0].strip("`")] = cells[-3].strip("`").replace("\\|", "|")
    return {key: None if text == "required" else tomllib.loads(f"x = {text}")["x"] for key, text in rows.items()}


def name_of(value: object) -> str:
    return value if isinstance(value, str) else ""


@pytest.mark.parametrize(("section", "kind", "spec"), TABLES, ids=name_of)
def test_the_page_has_every_key_with_its_default(section: str, kind: str, spec: type[Section]) -> None:
    defaults = shown(section, kind)
    fields = keys(spec)
    assert sorted(defaults) == sorted(fields)
    for key, default in defaults.items():
        written = fields[key].get_default(call_default_factory=True, validated_data={})
        assert default is None or default == (list(written) if isinstance(written, tuple) else written), key


@pytest.mark.parametrize(("section", "kind", "spec"), TABLES, ids=name_of)
def test_every_key_has_a_description(section: str, kind: str, spec: type[Section]) -> None:
    assert [key for key in spec.model_fields.keys() - {"kind"} if not descriptions(spec).get(key)] == []
    assert [key for key, field in keys(spec).items() if not values(field)] == []
    assert spec.__doc__


def test_a_run_file_of_all_shown_defaults_is_the_default_run() -> None:
    default_kinds = {name: getattr(RunSpec(), name) for name in ("model", "data", "rule", "exchange")}
    document: dict[str, Any] = {}
    for section, kind, _ in TABLES:
        if not kind or default_kinds[section].kind == kind:
            document[section] = shown(section, kind)
    assert RunSpec.model_validate(document) == RunSpec()
    assert set(document) == set(RunSpec.model_fields)
