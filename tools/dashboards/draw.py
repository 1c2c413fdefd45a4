"""Draw every dashboard from faulty traffic, to look at: ``python -m tools.dashboards.draw DIRECTORY [SECONDS]``.

Needs ``prometheus`` from the distribution, and matplotlib. Lines, units and legends are those that Grafana would show;
the look is not.
"""

from __future__ import annotations

import math
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter

from tests.dashboards._prometheus import running
from tests.dashboards._shipped import PANELS

if TYPE_CHECKING:
    from tests.dashboards._prometheus import Prometheus
    from tests.dashboards._shipped import Panel

Samples = list[dict[str, Any]]

_COLUMNS: Final = 24
_ROAD: Final = "scraped"
_STEP: Final = 2


def main(directory: Path, seconds: float) -> None:
    """Draw the dashboards after so many seconds of traffic."""
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as data, running(Path(data)) as prometheus:
        time.sleep(seconds)
        for board in sorted({panel.board for panel in PANELS}):
            _draw([panel for panel in PANELS if panel.board == board], prometheus, seconds, directory / f"{board}.png")


def _draw(panels: list[Panel], prometheus: Prometheus, seconds: float, file: Path) -> None:
    height = max(panel.json["gridPos"]["y"] + panel.json["gridPos"]["h"] for panel in panels)
    figure = plt.figure(figsize=(_COLUMNS, height * 0.5), dpi=65)
    for panel in panels:
        place = panel.json["gridPos"]
        bottom = 1 - (place["y"] + place["h"]) / height
        axes = figure.add_axes(
            (
                place["x"] / _COLUMNS + 0.025,
                bottom + 1.7 / height,
                place["w"] / _COLUMNS - 0.04,
                (place["h"] - 2.6) / height,
            )
        )
        axes.set_title(f"{panel.row}: {panel.json['title']}", fontsize=9, loc="left")
        answers = [_ask(prometheus, expression, seconds) for expression in panel.expressions]
        {"heatmap": _heat_map, "stat": _figure, "timeseries": _lines}[panel.json["type"]](axes, panel, answers)
    figure.savefig(file)
    plt.close(figure)
    print(file)


def _ask(prometheus: Prometheus, expression: str, seconds: float) -> Samples:
    filled = expression.replace("$__rate_interval", "10s").replace("$job", _ROAD)
    end = time.time()
    filled = re.sub(r"\$(instance|host)", ".*", filled)
    found: Samples = prometheus.get("query_range", query=filled, start=end - seconds, end=end, step=_STEP)["result"]
    return found


def _lines(axes: Any, panel: Panel, answers: list[Samples]) -> None:
    unit = panel.json["fieldConfig"]["defaults"]["unit"]
    overrides = panel.json["fieldConfig"]["overrides"]
    right = axes.twinx() if overrides else None
    stacked = panel.json["fieldConfig"]["defaults"]["custom"].get("stacking", {}).get("mode") == "normal"
    below: dict[float, float] = {}
    lines = []
    for target, samples in zip(panel.json["targets"], answers, strict=True):
        for sample in samples:
            legend = _legend(target["legendFormat"], sample["metric"])
            where = right if right is not None and re.search(overrides[0]["matcher"]["options"], legend) else axes
            points = [(at, float(value) + below.get(at, 0)) for at, value in sample["values"]]
            if stacked:
                axes.fill_between(*zip(*points, strict=True), [below.get(at, 0) for at, _ in points], alpha=0.3)
                below |= dict(points)
            style = "--" if where is right else "-"
            lines += where.plot(*zip(*points, strict=True), style, label=legend, marker=".", markersize=3)
    for each in filter(None, (axes, right)):
        each.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, unit)))
    axes.tick_params(labelsize=7)
    axes.set_xticks([])
    if lines:
        axes.legend(
            lines,
            [line.get_label() for line in lines],
            loc="upper left",
            bbox_to_anchor=(0, -0.02),
            ncols=6,
            fontsize=6,
        )
    else:
        axes.text(0.5, 0.5, "No data", transform=axes.transAxes, color="red", fontsize=16)


def _heat_map(axes: Any, _panel: Panel, answers: list[Samples]) -> None:
    rows = sorted(answers[0], key=lambda sample: float(sample["metric"]["le"]))
    times = sorted({at for sample in rows for at, _ in sample["values"]})
    counts = [[dict(sample["values"]).get(at, 0) for at in times] for sample in rows]
    cumulative = [[float(value) for value in row] for row in counts]
    cells = [
        [above - below for above, below in zip(row, before, strict=True)]
        for row, before in zip(cumulative, [[0.0] * len(times), *cumulative], strict=False)
    ]
    axes.imshow(
        [[cell or math.nan for cell in row] for row in cells], aspect="auto", origin="lower", cmap="Oranges", vmin=0
    )
    edges = [float(sample["metric"]["le"]) for sample in rows]
    axes.set_yticks(range(len(edges)), [shown(edge, "s") for edge in edges], fontsize=6)
    axes.set_xticks([])


def _figure(axes: Any, panel: Panel, answers: list[Samples]) -> None:
    axes.set_axis_off()
    unit = panel.json["fieldConfig"]["defaults"]["unit"]
    text = shown(float(answers[0][0]["values"][-1][1]), unit) if answers[0] else "No data"
    axes.text(0.05, 0.2, text, transform=axes.transAxes, fontsize=20, color="green")


def _legend(template: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda name: labels.get(name[1], ""), template)


def shown(value: float, unit: str) -> str:
    """Return a value as Grafana shows it in a unit, more or less."""
    if unit == "s":
        for factor, name in ((1, "s"), (1e3, "ms"), (1e6, "µs")):
            if abs(value) * factor >= 1 or name == "µs":
                return f"{value * factor:.3g} {name}" if value else "0 s"
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    return f"{value:.3g} {({'reqps': 'req/s', 'cps': 'c/s', 'suffix: days': 'days', 'short': ''})[unit]}".strip()


if __name__ == "__main__":
    main(Path(sys.argv[1]), float((*sys.argv, "60")[2]))
