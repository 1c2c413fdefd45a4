"""The few kinds of panel that the dashboards are made of, and the PromQL in them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from grafana_foundation_sdk.builders import common, dashboard, heatmap, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as dashboard_models
from grafana_foundation_sdk.models import heatmap as heatmap_models
from grafana_foundation_sdk.models import prometheus as prometheus_models

from tools.dashboards._series import HOST, NAME, SETUP

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Query = tuple[str, str]
"""An expression and its legend."""

PROCESS: Final = 'job=~"$job", instance=~"$instance"'
SERVER: Final = f'{PROCESS}, {HOST}=~"$host"'
LOOKUP: Final = f'{PROCESS}, {NAME}=~"$host"'

THIRD, HALF, FULL = 8, 12, 24
_HEIGHT: Final = 8
_STAT_HEIGHT: Final = 4
_TAG: Final = "aiohttp-hardened"
_SOURCE: Final = dashboard_models.DataSourceRef(type_val="prometheus", uid="${datasource}")


def rate(series: str, selector: str, *by: str) -> str:
    """Return what a counter gains in a second, summed by labels."""
    return f"sum{_by(by)} (rate({series}{{{selector}}}[$__rate_interval]))"


def total(gauge: str, selector: str, *by: str) -> str:
    """Return the sum of a gauge by labels."""
    return f"sum{_by(by)} ({gauge}{{{selector}}})"


def quantile(share: float, family: str, selector: str, *by: str) -> str:
    """Return a quantile of a histogram; nothing, not NaN, where nothing was recorded."""
    buckets = rate(f"{family}_bucket", selector, *by, "le")
    return f"histogram_quantile({share}, {buckets}) >= 0"


def ratio(part: str, whole: str) -> str:
    """Return a part of a whole; nothing, not NaN, where the whole is 0."""
    return f"{part} / ({whole} > 0)"


def percentiles(family: str, selector: str) -> list[Query]:
    """Return the queries of three percentiles."""
    return [(quantile(share, family, selector), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99)]


def _by(labels: Sequence[str]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def graph(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    width: int = HALF,
    stacked: bool = False,
    right: tuple[str, str] | None = None,
) -> timeseries.Panel:
    """Return a panel of lines.

    Args:
        title: What is shown.
        description: How to read it, in a sentence.
        unit: Grafana's name of it.
        queries: The lines.
        width: Of 24.
        stacked: The lines are parts of a whole.
        right: A regular expression of legends that have an axis of their own, and its title.
    """
    legend = (
        common.VizLegendOptions()
        .display_mode(common_models.LegendDisplayMode.LIST)
        .placement(common_models.LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    panel = (
        timeseries.Panel()
        .legend(legend)
        .tooltip(common.VizTooltipOptions().mode(common_models.TooltipDisplayMode.MULTI))
        .line_width(1)
        .fill_opacity(30 if stacked else 8)
        .show_points(common_models.VisibilityMode.AUTO)
        .min(0)
    )
    if stacked:
        panel.stacking(common.StackingConfig().mode(common_models.StackingMode.NORMAL))
    if right is not None:
        pattern, label = right
        panel.override_by_regexp(
            pattern,
            [
                dashboard_models.DynamicConfigValue("unit", "short"),
                dashboard_models.DynamicConfigValue("custom.axisPlacement", "right"),
                dashboard_models.DynamicConfigValue("custom.axisLabel", label),
            ],
        )
    return _described(panel, title, description, unit, queries, width, _HEIGHT)


def figure(
    title: str, description: str, unit: str, expression: str, *, width: int = 4, worst: float | None = None
) -> Any:
    """Return a panel of one number.

    Args:
        title: What is shown.
        description: How to read it, in a sentence.
        unit: Grafana's name of it.
        expression: The number.
        width: Of 24.
        worst: Red from here up.
    """
    steps = [dashboard_models.Threshold(color="green", value=None)]
    if worst is not None:
        steps.append(dashboard_models.Threshold(color="red", value=worst))
    panel = (
        stat.Panel()
        .thresholds(dashboard.ThresholdsConfig().mode(dashboard_models.ThresholdsMode.ABSOLUTE).steps(steps))
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(common_models.BigValueGraphMode.AREA)
    )
    return _described(panel, title, description, unit, [(expression, title)], width, _STAT_HEIGHT)


def heat_map(title: str, description: str, family: str, selector: str, *, width: int = THIRD) -> Any:
    """Return a heat map of a histogram: time, duration, and how many."""
    buckets = f"sum by (le) (increase({family}_bucket{{{selector}}}[$__rate_interval]))"
    query = _target(buckets, "{{le}}").format(prometheus_models.PromQueryFormat.HEATMAP)
    panel = (
        heatmap.Panel()
        .calculate(False)
        .color(heatmap.HeatmapColorOptions().mode(heatmap_models.HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .filter_values(heatmap.FilterValueRange().le(1e-9))
        .y_axis(heatmap.YAxisConfig().unit("s"))
        .with_target(query)
    )
    return _described(panel, title, description, "short", [], width, _HEIGHT)


def _described(
    panel: Any, title: str, description: str, unit: str, queries: Sequence[Query], width: int, height: int
) -> Any:
    for letter, (expression, legend) in zip("ABCDEFGH", queries, strict=False):
        panel.with_target(_target(expression, legend, letter))
    return panel.title(title).description(description).unit(unit).datasource(_SOURCE).span(width).height(height)


def _target(expression: str, legend: str, letter: str = "A") -> prometheus.Dataquery:
    return prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(letter).datasource(_SOURCE)


def board(name: str, title: str, description: str, rows: dict[str, list[Any]]) -> dict[str, Any]:
    """Return a dashboard as JSON.

    Args:
        name: Of its file, and in its address.
        title: After the project's name.
        description: What it answers.
        rows: Panels under the titles of rows.
    """
    built = (
        dashboard.Dashboard(f"aiohttp-hardened: {title}")
        .uid(f"aiohttp-hardened-{name}")
        .description(description)
        .tags([_TAG])
        .editable()
        .refresh("30s")
        .time("now-1h", "now")
        .tooltip(dashboard_models.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("aiohttp-hardened")
            .type(dashboard_models.DashboardLinkType.DASHBOARDS)
            .tags([_TAG])
            .as_dropdown(True)
            .include_vars(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for variable in _variables():
        built.with_variable(variable)
    for row, panels in rows.items():
        built.with_row(dashboard.Row(row))
        for panel in panels:
            built.with_panel(panel)
    return _plain(built.build())


def _variables() -> list[dashboard.QueryVariable]:
    one: Callable[[str, str, str], dashboard.QueryVariable] = lambda name, label, query: (  # noqa: E731  (a table's row)
        dashboard.QueryVariable(name)
        .label(label)
        .query(query)
        .datasource(_SOURCE)
        .refresh(dashboard_models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard_models.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(dashboard_models.VariableOption(selected=True, text="All", value="$__all"))
    )
    return [
        one("job", "Job", f"label_values({SETUP}_count, job)"),
        one("instance", "Instance", f'label_values({SETUP}_count{{job=~"$job"}}, instance)'),
        one("host", "Host", f"label_values({SETUP}_count{{{PROCESS}}}, {HOST})"),
    ]


def _plain(built: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(JSONEncoder().encode(built))
    for number, panel in enumerate(document["panels"], 1):
        panel["id"] = number
    return document
