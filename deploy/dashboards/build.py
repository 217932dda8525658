"""A described dashboard in Grafana's words, by Grafana's own types. They need Python 3.11, so they are `Any` to mypy,
which checks for 3.10; the tests hold what is written against them."""

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
"""As grafana/provisioning/datasources names it."""
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


def to_json(described: Dashboard) -> str:
    text: str = JSONEncoder(sort_keys=True, indent=2).encode(build(described))
    return text + "\n"


def build(described: Dashboard) -> Any:
    builder = (
        dashboard.Dashboard(described.title)
        .uid(f"thinwire-{described.uid}")
        .description(described.about)
        .tags([TAG])
        .time("now-30m", "now")
        .refresh("10s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .readonly()
        .link(
            dashboard.DashboardLink("The other dashboards")
            .type(DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .keep_time(True)
        )
    )
    for choice in described.choices:
        builder.with_variable(
            dashboard.QueryVariable(choice.name)
            .label(choice.label)
            .query({"query": choice.query, "refId": choice.name})
            .regex(choice.regex)
            .datasource(SOURCE)
            .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        )
    for row in described.rows:
        builder.with_row(dashboard.Row(row.title))
        for panel in row.panels:
            builder.with_panel(_panel(panel))
    built = builder.build()
    for number, placed in enumerate(built.panels, start=1):
        placed.id_val = number  # or Grafana gives others with each start, and links to a panel break
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
