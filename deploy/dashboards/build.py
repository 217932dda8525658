"""Builds Grafana's JSON model of a dashboard with Grafana's own types.

These types need Python 3.11. They are `Any` to mypy, which checks for 3.10; the tests check the result against them.
"""

from __future__ import annotations

from string import ascii_uppercase
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    BigValueTextMode,
    HeatmapCellLayout,
    LegendDisplayMode,
    LegendPlacement,
    ScaleDistribution,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    Threshold,
    ThresholdsMode,
    VariableRefresh,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.dashboards.panels import Dashboard, Panel, Unit

SOURCE = DataSourceRef(type_val="prometheus", uid="thinwire")
"""As named in grafana/provisioning/datasources."""
TAG = "thinwire"
NUMBER_HEIGHT = 4
PANEL_HEIGHT = 8
UNITS: dict[Unit, str] = {
    "number": units.Short,
    "tokens/s": "suffix: tokens/s",
    "times/s": units.CountsPerSecond,
    "bytes": units.BytesSI,
    "bytes/s": units.BytesPerSecondSI,
    "bits": "suffix: bit",
    "bytes a parameter": "suffix: B",
    "share": units.PercentUnit,
    "seconds": units.Seconds,
    "nats": "suffix: nats",
    "times": "suffix:×",
}


def to_json(description: Dashboard) -> str:
    text: str = JSONEncoder(sort_keys=True, indent=2).encode(build(description))
    return text + "\n"


def build(description: Dashboard) -> Any:
    builder = (
        dashboard.Dashboard(description.title)
        .uid(f"thinwire-{description.uid}")
        .description(description.about)
        .tags([TAG])
        .time("now-30m", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(
            dashboard.DashboardLink("Other dashboards").type(DashboardLinkType.DASHBOARDS).tags([TAG]).keep_time(True)
        )
    )
    for variable in description.variables:
        builder.with_variable(
            dashboard.QueryVariable(variable.name)
            .label(variable.label)
            .query({"query": variable.query, "refId": variable.name})
            .regex(variable.regex)
            .datasource(SOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        )
    for row in description.rows:
        builder.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            builder.with_panel(_panel(panel))
    built = builder.build()
    for number, placed in enumerate(built.panels, start=1):
        placed.id_val = number  # stable ids, so that links to a panel survive a restart of Grafana
    return built


def _panel(panel: Panel) -> Any:
    builder = {"number": _number, "bars": _bars, "heatmap": _heatmap}.get(panel.kind, _lines)(panel)
    builder.title(panel.title).description(panel.about).unit(UNITS[panel.unit]).datasource(SOURCE)
    builder.span(panel.width).height(NUMBER_HEIGHT if panel.kind == "number" else PANEL_HEIGHT)
    if panel.decimals is not None:
        builder.decimals(panel.decimals)
    for letter, query in zip(ascii_uppercase, panel.queries, strict=False):
        target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend)
        target.ref_id(letter).datasource(SOURCE)
        if panel.kind == "heatmap":
            target.format(PromQueryFormat.HEATMAP)
        builder.with_target(target.instant() if panel.kind == "bars" else target.range())
    return builder


def _lines(panel: Panel) -> Any:
    legend = common.VizLegendOptions().show_legend(True).display_mode(LegendDisplayMode.LIST)
    builder = (
        timeseries.Panel()
        .legend(legend.placement(LegendPlacement.BOTTOM))
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
        .show_points(VisibilityMode.NEVER)
        .line_width(1)
        .fill_opacity(10)
    )
    if panel.kind == "stack":
        builder.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(40).min(0)
    if panel.log:
        builder.scale_distribution(common.ScaleDistributionConfig().type(ScaleDistribution.LOG).log(10))
    return builder


def _number(panel: Panel) -> Any:
    builder = (
        stat.Panel()
        .graph_mode(BigValueGraphMode.NONE if panel.shows_legend else BigValueGraphMode.AREA)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .text_mode(BigValueTextMode.NAME if panel.shows_legend else BigValueTextMode.AUTO)
    )
    steps = [Threshold(value=None, color="green")]
    if panel.bad_from is not None:
        steps.append(Threshold(value=panel.bad_from, color="red"))
    return builder.thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))


def _bars(panel: Panel) -> Any:
    return bargauge.Panel().reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"])).min(0)


def _heatmap(panel: Panel) -> Any:
    return (
        heatmap.Panel()
        .calculate(False)
        .scale_distribution(common.ScaleDistributionConfig().type(ScaleDistribution.LINEAR))
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .rows_frame(heatmap.RowsHeatmapOptions().layout(HeatmapCellLayout.AUTO))
        .y_axis(heatmap.YAxisConfig().unit(UNITS[panel.unit]))
    )
