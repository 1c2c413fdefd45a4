"""Histograms of an SDK reader as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.table import Table

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

_LEVELS: Final = " ▁▂▃▄▅▆▇█"
_SHOWN: Final = ("server.address", "dns.question.name", "error.type", "http.response.status_code")


def table_of(reader: InMemoryMetricReader) -> Table:
    """Return a table of every histogram that a reader has, one row per set of attributes."""
    table = Table(
        box=None,
        padding=(0, 1, 0, 0),
        title="Histograms (each column of the picture is a bucket)",
        title_justify="left",
    )
    table.add_column("metric", no_wrap=True, width=19)
    table.add_column("attributes", no_wrap=True, overflow="ellipsis", width=22)
    table.add_column("n", justify="right", width=3)
    table.add_column("mean, ms", justify="right", width=8)
    table.add_column("0.5 ms … 30 s", no_wrap=True, width=24)
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                _add_rows(table, metric)
    return table


def _add_rows(table: Table, metric: Any) -> None:
    for point in metric.data.data_points:
        if not getattr(point, "count", 0) or not hasattr(point, "bucket_counts"):
            continue
        attributes = ", ".join(str(point.attributes[key]) for key in _SHOWN if key in point.attributes)
        name = metric.name.removeprefix("aiohttp.client.").removeprefix("http.client.").removesuffix(".duration")
        table.add_row(
            name, attributes, str(point.count), f"{point.sum / point.count * 1e3:.1f}", _picture(point.bucket_counts)
        )


def _picture(counts: Any) -> str:
    most = max(counts)
    return "".join(_LEVELS[-(-each * (len(_LEVELS) - 1) // most)] if each else "·" for each in counts)
