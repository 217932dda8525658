"""Writes the dashboards' JSON from their descriptions, or checks that the committed files are up to date (`--check`).

A description has rows of panels. docs/metrics.md lists the metrics, and deploy/prometheus/rules.yml the recorded ones.
The keys of a panel:

* kind: lines; stack (lines that add up); number (the newest value in large type); bars (one for the newest value of
  each series); heatmap (of a histogram's buckets).
* unit: as Grafana names it.
* queries: PromQL by legend, which is in Grafana's syntax, with {{label}}.
* width: in 24ths of the page; 12 without it.
* bad_from: values from here on are red, others green.
* log: a logarithmic axis. decimals: of the numbers.
* shows_legend: show the legend instead of the number, for a label that is the value.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parent / "grafana" / "dashboards"
TAG = "thinwire"
SOURCE = {"type": "prometheus", "uid": "thinwire"}
"""As named in grafana/provisioning/datasources."""
NUMBER_HEIGHT, PANEL_HEIGHT, PAGE_WIDTH = 4, 8, 24
LEGEND = {"calcs": [], "displayMode": "list", "placement": "bottom"}
NEWEST = {"calcs": ["lastNotNull"]}
TYPES = {"lines": "timeseries", "stack": "timeseries", "number": "stat", "bars": "bargauge", "heatmap": "heatmap"}
OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {"legend": {**LEGEND, "showLegend": True}, "tooltip": {"mode": "multi", "sort": "desc"}},
    "stat": {
        **{"colorMode": "value", "graphMode": "area", "justifyMode": "auto", "orientation": "auto"},
        **{"percentChangeColorMode": "standard", "reduceOptions": NEWEST, "showPercentChange": False},
        **{"textMode": "auto", "wideLayout": True},
    },
    "bargauge": {
        **{"displayMode": "gradient", "legend": {**LEGEND, "showLegend": False}, "maxVizHeight": 300},
        **{"minVizHeight": 16, "minVizWidth": 8, "namePlacement": "auto", "orientation": "auto"},
        **{"reduceOptions": NEWEST, "showUnfilled": True, "sizing": "auto", "valueMode": "color"},
    },
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {"exponent": 0, "fill": "", "mode": "scheme", "reverse": False, "scheme": "Oranges", "steps": 64},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-09},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "selectionMode": "x",
        "showValue": "auto",
        "tooltip": {"mode": "single"},
    },
}
LINK = {
    **{"asDropdown": False, "icon": "", "includeVars": False, "keepTime": True, "tags": [TAG]},
    **{"targetBlank": False, "title": "Other dashboards", "tooltip": "", "type": "dashboards"},
}


def descriptions() -> dict[str, dict[str, Any]]:
    return {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(HERE.glob("*.yml"))}


def build(name: str, description: dict[str, Any]) -> dict[str, Any]:
    """Grafana's JSON model of a dashboard."""
    return {
        "annotations": {"list": [_mark(name, query) for name, query in description.get("marks", {}).items()]},
        "description": description["about"],
        "editable": False,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,  # a crosshair in all panels
        "links": [LINK],
        # ids are stable, so that links to a panel survive a restart of Grafana
        "panels": [panel | {"id": number} for number, panel in enumerate(_panels(description["rows"]), start=1)],
        "refresh": "10s",
        "schemaVersion": 41,
        "tags": [TAG],
        "templating": {"list": [_variable(description["variable"])]} if "variable" in description else {},
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "title": f"thinwire: {name}",
        "uid": f"thinwire-{name}",
    }


def _mark(name: str, query: str) -> dict[str, Any]:
    """A line across all panels wherever a query has a value."""
    shown = {"enable": True, "hide": False, "iconColor": "orange", "builtIn": 0}
    return {"name": name, "datasource": SOURCE, "expr": query} | shown


def _variable(variable: dict[str, str]) -> dict[str, Any]:
    """A menu of the values that a query finds. regex: finds text and value of each."""
    fixed = {"allowCustomValue": True, "auto": False, "auto_count": 30, "auto_min": "10s", "datasource": SOURCE}
    fixed |= {"includeAll": False, "multi": False, "refresh": 2, "skipUrlSync": False, "type": "query"}
    return fixed | variable | {"query": {"query": variable["query"], "refId": variable["name"]}}


def _panels(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The panels of all rows from left to right, each row below the one before it."""
    y = 0
    for row in rows:
        place = {"h": 1, "w": PAGE_WIDTH, "x": 0, "y": y}
        yield {"collapsed": False, "gridPos": place, "panels": [], "title": row["title"], "type": "row"}
        x, y, height = 0, y + 1, 0
        for panel in row["panels"]:
            width = panel.get("width", PAGE_WIDTH // 2)
            if x + width > PAGE_WIDTH:
                x, y = 0, y + height
            height = NUMBER_HEIGHT if panel["kind"] == "number" else PANEL_HEIGHT
            yield _panel(panel) | {"gridPos": {"h": height, "w": width, "x": x, "y": y}}
            x += width
        y += height


def _panel(panel: dict[str, Any]) -> dict[str, Any]:
    kind, custom = panel["kind"], {}
    defaults: dict[str, Any] = {"unit": panel["unit"]}
    options = OPTIONS[TYPES[kind]]
    if "decimals" in panel:
        defaults["decimals"] = panel["decimals"]
    if kind in ("lines", "stack"):
        custom = {"fillOpacity": 10, "lineWidth": 1, "showPoints": "never"}
    if kind == "stack":
        custom |= {"fillOpacity": 40, "stacking": {"mode": "normal"}}
    if kind in ("stack", "bars"):
        defaults["min"] = 0
    if panel.get("log"):
        custom["scaleDistribution"] = {"log": 10, "type": "log"}
    if kind == "heatmap":
        custom["scaleDistribution"] = {"type": "linear"}
        options = options | {"yAxis": {"unit": panel["unit"]}}
    if kind == "number":
        steps = [{"color": "green", "value": None}]
        steps += [{"color": "red", "value": panel["bad_from"]}] if "bad_from" in panel else []
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    if panel.get("shows_legend"):
        options = options | {"graphMode": "none", "textMode": "name"}
    return {
        "datasource": SOURCE,
        "description": panel["about"],
        "fieldConfig": {"defaults": defaults | ({"custom": custom} if custom else {}), "overrides": []},
        "options": options,
        "repeatDirection": "h",
        "targets": [_target(kind, *one) for one in zip(ascii_uppercase, panel["queries"].items(), strict=False)],
        "title": panel["title"],
        "transparent": False,
        "type": TYPES[kind],
    }


def _target(kind: str, letter: str, query: tuple[str, str]) -> dict[str, Any]:
    legend, expr = query
    is_instant = kind == "bars"
    target = {"datasource": SOURCE, "expr": expr, "instant": is_instant, "legendFormat": legend}
    target |= {"range": not is_instant, "refId": letter}
    return target | ({"format": "heatmap"} if kind == "heatmap" else {})


def main() -> None:
    fresh = {
        f"{name}.json": json.dumps(build(name, description), sort_keys=True, indent=2) + "\n"
        for name, description in descriptions().items()
    }
    if sys.argv[1:] != ["--check"]:
        for name, text in fresh.items():
            (FOLDER / name).write_text(text, encoding="utf-8")
        return
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    stale = sorted(name for name in fresh | committed if fresh.get(name) != committed.get(name))
    if stale:
        raise SystemExit(f"out of date: {', '.join(stale)}; run `make dashboards` and commit the result")
    print("the dashboards are up to date")


if __name__ == "__main__":
    main()
