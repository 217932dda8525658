"""The dashboards' JSON conforms to Grafana's types, and every queried metric exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import typing
from enum import EnumMeta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ConfigDict, TypeAdapter

from deploy.dashboards.__main__ import FOLDER, descriptions
from tools.metrics_table import COORDINATOR, NODE

RULES = FOLDER.parent.parent / "prometheus" / "rules.yml"
PROVISIONING = FOLDER.parent / "provisioning"
METRIC = re.compile(r"\b(?:[a-z]+:)?(?:thinwire|process)_[a-z0-9_]+(?::[a-z0-9]+)?\b")
FILES = sorted(FOLDER.glob("*.json"))
PROCESS = {"process_cpu_seconds_total", "process_resident_memory_bytes"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_json_round_trips_through_grafanas_types(path: Path) -> None:
    """Reading and writing it with the types changes nothing, so no key is unknown and each has its type."""
    pytest.importorskip("grafana_foundation_sdk", reason="Grafana's types need Python 3.11")
    from grafana_foundation_sdk.cog import plugins  # noqa: PLC0415
    from grafana_foundation_sdk.cog.encoder import JSONEncoder  # noqa: PLC0415
    from grafana_foundation_sdk.models.dashboard import Dashboard  # noqa: PLC0415

    plugins.register_default_plugins()  # otherwise the options of panels and queries stay plain dictionaries
    written = json.loads(path.read_text())
    read = Dashboard.from_json(written)
    assert json.loads(JSONEncoder().encode(read)) == written
    _check_types(read)


def _check_types(value: Any) -> None:
    """Every attribute, at any depth, has the type that Grafana's class declares."""
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
def test_every_panel_has_a_description_and_a_unit(path: Path) -> None:
    panels = [panel for panel in json.loads(path.read_text())["panels"] if panel["type"] != "row"]
    titles = [(panel["title"], panel["type"]) for panel in panels]
    assert len(titles) > 10
    for panel in panels:
        assert len(panel["description"]) > 10, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        assert panel["datasource"]["uid"] == "thinwire"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_panels_fit_the_grid_and_do_not_overlap(path: Path) -> None:
    occupied: set[tuple[int, int]] = set()
    for panel in json.loads(path.read_text())["panels"]:
        position = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(position["x"], position["x"] + position["w"])
            for y in range(position["y"], position["y"] + position["h"])
        }
        assert max(x for x, _ in cells) < 24, panel["title"]
        assert not cells & occupied, panel["title"]
        occupied |= cells


def test_every_queried_metric_exists() -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    known = set(PROCESS) | {rule["record"] for rule in rules if "record" in rule}
    for family in (*COORDINATOR, *NODE):
        ends = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        known |= {family.name + end for end in ends}
    rows = [row for dashboard in descriptions().values() for row in dashboard["rows"]]
    expressions = [expr for row in rows for panel in row["panels"] for expr in panel["queries"].values()]
    expressions.append(descriptions()["node"]["variable"]["query"])
    expressions += [rule["expr"] for rule in rules]
    assert len(expressions) > 100
    for expression in expressions:
        names = METRIC.findall(expression)
        assert names or expression == "up == 0", expression
        assert set(names) <= known, expression


def test_quotients_are_finite_in_runs_whose_rounds_last_a_minute(tmp_path: Path) -> None:
    """By promtool, with a scrape every five seconds. A counter that stands for a minute has a rate of 0 over 20 s."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install -y prometheus")
    rows = descriptions()["bandwidth"]["rows"]
    (each,) = [row for row in rows if row["title"] == "Per round, token and parameter"]
    found = [expr for panel in each["panels"] for expr in panel["queries"].values()]
    queries = [expr.replace("$__rate_interval", "20s") for expr in found]
    counters = {name for query in queries for name in METRIC.findall(query) if name.endswith("_total")}
    labels = 'instance="c", direction="{}", outcome="counted", result="sealed"'
    series = [f"{name}{{{labels.format(way)}}}" for name in sorted(counters) for way in ("sent", "received")]
    values = " ".join(f"{minute}x11" for minute in range(20))  # twelve samples a minute
    inputs = [{"series": one, "values": values} for one in series]
    inputs.append({"series": 'thinwire_coordinator_parameters{instance="c"}', "values": "1x240"})
    cases = [
        {"expr": f"count(({query}) < +Inf)", "eval_time": f"{seconds}s", "exp_samples": [{"labels": "{}", "value": 1}]}
        for query in queries
        for seconds in range(600, 660, 20)
    ]
    case = {"interval": "5s", "input_series": inputs, "promql_expr_test": cases}
    (tmp_path / "test.json").write_text(json.dumps({"rule_files": [], "tests": [case]}))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.json"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_data_source_is_the_provisioned_one() -> None:
    (source,) = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())["datasources"]
    (provider,) = yaml.safe_load((PROVISIONING / "dashboards" / "thinwire.yml").read_text())["providers"]
    compose = yaml.safe_load((FOLDER.parent.parent.parent / "docker-compose.yml").read_text())
    assert source["uid"] == "thinwire"
    assert source["url"] == "http://prometheus:9090"
    mounts = compose["services"]["grafana"]["volumes"]
    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:ro" in mounts
