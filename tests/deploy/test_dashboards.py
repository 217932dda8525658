"""The dashboards' JSON against Grafana's published types, and what they ask against what there is to ask for."""

from __future__ import annotations

import json
import re
import typing
from enum import EnumMeta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ConfigDict, TypeAdapter

from deploy.dashboards.__main__ import FOLDER
from deploy.dashboards.description import DASHBOARDS
from thinwire_coordinator.observe.definitions import METRICS as COORDINATORS
from thinwire_node.observe.definitions import METRICS as NODES

RULES = FOLDER.parent.parent / "prometheus" / "rules.yml"
PROVISIONING = FOLDER.parent / "provisioning"
METRIC = re.compile(r"\b(?:[a-z]+:)?(?:thinwire|process)_[a-z0-9_]+(?::[a-z0-9]+)?\b")
FILES = sorted(FOLDER.glob("*.json"))
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}


def test_all_four_are_there() -> None:
    assert [path.stem for path in FILES] == ["bandwidth", "node", "rounds", "swarm"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_grafanas_types_hold_it_whole(path: Path) -> None:
    """Read through the types and written again it is the same: no key is unknown to them, and each has its type."""
    pytest.importorskip("grafana_foundation_sdk", reason="Grafana's types need Python 3.11")
    from grafana_foundation_sdk.cog import plugins  # noqa: PLC0415
    from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: PLC0415
    from grafana_foundation_sdk.models.dashboard import Dashboard  # noqa: PLC0415

    plugins.register_default_plugins()  # or each panel's and query's own options stay plain dictionaries
    written = json.loads(path.read_text())
    read = Dashboard.from_json(written)
    assert json.loads(JSONEncoder().encode(read)) == written
    _check_types(read)


def _check_types(value: Any) -> None:
    """Every attribute has the type that Grafana's class declares for it, all the way down."""
    if isinstance(value, list | dict):
        for part in value if isinstance(value, list) else value.values():
            _check_types(part)
    if not type(value).__module__.startswith("grafana_foundation_sdk.models") or isinstance(value, str):
        return
    for name, declared in typing.get_type_hints(type(value)).items():
        found = getattr(value, name)
        enums = [part for part in (declared, *typing.get_args(declared)) if isinstance(part, EnumMeta)]
        if enums and found is not None:
            enums[0](found)  # some are read as plain values
        else:
            adapter: TypeAdapter[Any] = TypeAdapter(declared, config=ConfigDict(arbitrary_types_allowed=True))
            adapter.validate_python(found, strict=True)
        _check_types(found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_panel_says_what_it_shows_and_in_which_unit(path: Path) -> None:
    panels = [panel for panel in json.loads(path.read_text())["panels"] if panel["type"] != "row"]
    titles = [(panel["title"], panel["type"]) for panel in panels]
    assert len(titles) > 10
    for panel in panels:
        assert len(panel["description"]) > 10, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        assert panel["datasource"]["uid"] == "thinwire"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_fill_the_grid_and_never_overlap(path: Path) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(path.read_text())["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24, panel["title"]
        assert not cells & taken, panel["title"]
        taken |= cells


def test_whatever_is_asked_for_exists() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    there = set(PROCESS) | {rule["record"] for rule in rules if "record" in rule}
    for family in (*COORDINATORS, *NODES):
        ends = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        there |= {family.name + end for end in ends}
    asked = [query.expr for dashboard in DASHBOARDS for panel in dashboard.panels for query in panel.queries]
    asked += [choice.query for dashboard in DASHBOARDS for choice in dashboard.choices]
    asked += [rule["expr"] for rule in rules]
    assert len(asked) > 100
    for expression in asked:
        names = METRIC.findall(expression)
        assert names or expression == "up == 0", expression
        assert set(names) <= there, expression


def test_the_source_of_data_is_the_one_that_is_provisioned() -> None:
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "thinwire.yml").read_text())["providers"]
    compose = yaml.safe_load((FOLDER.parent.parent.parent / "docker-compose.yml").read_text())
    assert source["uid"] == "thinwire"
    assert source["url"] == "http://prometheus:9090"
    mounts = compose["services"]["grafana"]["volumes"]
    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:ro" in mounts
