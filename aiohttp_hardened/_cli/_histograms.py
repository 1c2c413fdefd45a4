"""Histograms of an SDK reader as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from rich.console import Console

_ATTRIBUTES: Final = 39
_LEVELS, _EMPTY = "▁▂▃▄▅▆▇█", "·"
_PLAIN_LEVELS, _PLAIN_EMPTY = "12345678", "."
_SHOWN: Final = ("server.address", "dns.question.name", "error.type", "http.response.status_code", "network.type")


def show_histograms(console: Console, reader: InMemoryMetricReader) -> None:
    """Print every histogram that a reader has: one row per set of attributes.

    Args:
        console: Where.
        reader: Of a MeterProvider that still lives.
    """
    heading = f"{'':{_ATTRIBUTES}} {'n':>4} {'mean':>10} {'buckets, fast to slow'}"
    console.print(Text.assemble(("\nHistograms\n", "bold cyan"), (heading, "bright_black")), soft_wrap=True)
    for metric in sorted(_histograms(reader), key=lambda each: each.name):
        points = sorted(metric.data.data_points, key=_words)
        bounds = points[0].explicit_bounds
        name = Text.assemble(
            (f" {metric.name}", "bold"), (f" {_time(bounds[0])} to {_time(bounds[-1])}", "bright_black")
        )
        console.print(name, soft_wrap=True)
        for point in points:
            _show_row(console, point)


def _show_row(console: Console, point: Any) -> None:
    words = f"   {_words(point)}"
    if len(words) > _ATTRIBUTES:
        console.print(words, soft_wrap=True)
        words = ""
    mean = f"{point.sum / point.count * 1e3:.1f} ms"
    picture = _picture(point.bucket_counts, ascii_only=console.options.ascii_only)
    console.print(f"{words:{_ATTRIBUTES}} {point.count:>4} {mean:>10} {picture}", soft_wrap=True)


def _histograms(reader: InMemoryMetricReader) -> Iterator[Any]:
    data = reader.get_metrics_data()
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            yield from (metric for metric in scope.metrics if hasattr(metric.data.data_points[0], "bucket_counts"))


def _words(point: Any) -> str:
    return " ".join(str(point.attributes[key]) for key in _SHOWN if key in point.attributes)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:g} ms" if seconds < 1 else f"{seconds:g} s"


def _picture(counts: Sequence[int], *, ascii_only: bool) -> str:
    levels, empty = (_PLAIN_LEVELS, _PLAIN_EMPTY) if ascii_only else (_LEVELS, _EMPTY)
    most = max(counts)
    return "".join(levels[-(-each * len(levels) // most) - 1] if each else empty for each in counts)
