"""Metrics as Prometheus shows them, by the names of ``telemetry/_names.py``.

Spellings differ by road: the Python exporter and OTLP's default translation say
``dns_lookup_duration_seconds``, other strategies of the latter leave the unit or the
dots. All are understood. What is not ours is left out.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from aiohttp_hardened.telemetry import _names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Labels = frozenset[tuple[str, str]]
_PARTS: Final = ("_bucket", "_count", "_sum")
_UNITS: Final = {"s": "_seconds"}


def plain(name: str) -> str:
    """Return a metric's or attribute's name with underscores alone."""
    return re.sub(r"[^a-zA-Z0-9]", "_", name)


def spellings(metric: _names.Metric) -> list[str]:
    """Return each name that a metric may have, with underscores alone and without a histogram's parts."""
    units = ("", _UNITS[metric.unit]) if metric.unit in _UNITS else ("",)
    kinds = ("", "_total") if metric.kind == "counter" else ("",)
    return [plain(metric.name) + unit + kind for unit in units for kind in kinds]


_OURS: Final = {
    name + part: (metric, part)
    for metric in _names.METRICS
    for name in spellings(metric)
    for part in (_PARTS if metric.kind == "histogram" else ("",))
}


@dataclass(frozen=True)
class Distribution:
    """A histogram: how many values are at most as large as each edge.

    Args:
        edges: Ascending, the last one infinite; with the cumulative counts.
    """

    edges: Mapping[float, float]

    @property
    def count(self) -> float:
        """How many values there are."""
        return self.edges.get(math.inf, 0.0)

    def quantile(self, share: float) -> float:
        """Return a quantile by linear interpolation, as PromQL's ``histogram_quantile`` does.

        Args:
            share: 0 to 1.

        Returns:
            NaN without values; the last finite edge for a value above it.
        """
        rank = share * self.count
        low, below = 0.0, 0.0
        for edge, cumulative in self.edges.items():
            if self.count and cumulative >= rank:
                if math.isinf(edge):
                    return low
                return low + (edge - low) * (rank - below) / (cumulative - below) if cumulative > below else edge
            low, below = edge, cumulative
        return math.nan

    def between(self, low: float, high: float) -> float | None:
        """Return how many values lie above ``low`` and up to ``high``; ``None``: these are no edges of its."""
        if low not in self.edges or high not in self.edges:
            return None
        return self.edges[high] - self.edges[low]

    def __add__(self, other: Distribution) -> Distribution:
        """Return both together, by the edges that both have: there counts are exact."""
        common = [edge for edge in self.edges if edge in other.edges]
        return Distribution({edge: self.edges[edge] + other.edges[edge] for edge in common})

    def since(self, before: Distribution | None) -> Distribution:
        """Return what was added; all of it after a restart."""
        if before is None or before.count > self.count or before.edges.keys() != self.edges.keys():
            return self
        return Distribution({edge: cumulative - before.edges[edge] for edge, cumulative in self.edges.items()})


@dataclass(frozen=True)
class Series:
    """One point of a metric.

    Args:
        attributes: Its labels, with underscores alone.
        value: What a counter or gauge says; a histogram's count.
        distribution: A histogram's.
    """

    attributes: Mapping[str, str]
    value: float
    distribution: Distribution

    def get(self, key: str) -> str:
        """Return an attribute by its name in ``telemetry/_names.py``; empty: there is none."""
        return self.attributes.get(plain(key), "")


@dataclass(frozen=True)
class Scrape:
    """All that a metrics endpoint said of ours at one time, or added between two times.

    Args:
        values: Of counters and gauges, by metric and labels.
        distributions: Of histograms, by metric and labels.
    """

    values: Mapping[str, Mapping[Labels, float]]
    distributions: Mapping[str, Mapping[Labels, Distribution]]

    def series(self, metric: str) -> list[Series]:
        """Return the points of a metric.

        Args:
            metric: Its name in ``telemetry/_names.py``.
        """
        nothing = Distribution({})
        plain_ones = [Series(dict(labels), value, nothing) for labels, value in self.values.get(metric, {}).items()]
        return plain_ones + [
            Series(dict(labels), each.count, each) for labels, each in self.distributions.get(metric, {}).items()
        ]

    def since(self, before: Scrape) -> Scrape:
        """Return what counters and histograms added; gauges stay what they are."""
        counters = {metric.name for metric in _names.METRICS if metric.kind == "counter"}

        def added(metric: str, labels: Labels, value: float) -> float:
            old = before.values.get(metric, {}).get(labels, 0.0) if metric in counters else 0.0
            return value - old if value >= old else value

        return Scrape(
            {
                metric: {labels: added(metric, labels, value) for labels, value in points.items()}
                for metric, points in self.values.items()
            },
            {
                metric: {
                    labels: each.since(before.distributions.get(metric, {}).get(labels))
                    for labels, each in points.items()
                }
                for metric, points in self.distributions.items()
            },
        )


def parse(text: str) -> Scrape:
    """Read Prometheus' text format.

    Raises:
        ModuleNotFoundError: The extra ``prometheus`` is missing.
        ValueError: That is no such text, or there is nothing of this package's in it.
    """
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415  (an extra)

    families: Iterable[Any] = text_string_to_metric_families(text)
    values: dict[str, dict[Labels, float]] = {}
    edges: dict[str, dict[Labels, dict[float, float]]] = {}
    for sample in itertools.chain.from_iterable(family.samples for family in families):
        metric, part = _OURS.get(plain(sample.name), (None, ""))
        if metric is None:
            continue
        labels = {plain(key): value for key, value in sample.labels.items()}
        edge = float(labels.pop("le", "nan"))
        if part == "_bucket":
            edges.setdefault(metric.name, {}).setdefault(frozenset(labels.items()), {})[edge] = sample.value
        elif not part:
            values.setdefault(metric.name, {})[frozenset(labels.items())] = sample.value
    if not values and not edges:
        raise ValueError("there is no metric of aiohttp_hardened in it")
    return Scrape(
        values,
        {
            metric: {labels: Distribution(dict(sorted(found.items()))) for labels, found in points.items()}
            for metric, points in edges.items()
        },
    )
