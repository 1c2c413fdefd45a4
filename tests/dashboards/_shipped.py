"""The dashboards and rules as they are shipped, and the names in their PromQL."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any, NamedTuple

import yaml

from aiohttp_hardened.telemetry import _names
from tools.dashboards._series import family, label

FOLDER = files("aiohttp_hardened") / "dashboards"
BOARDS: dict[str, dict[str, Any]] = {
    entry.name: json.loads(entry.read_text("utf-8")) for entry in FOLDER.iterdir() if entry.name.endswith(".json")
}
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load((FOLDER / "rules.yml").read_text("utf-8"))["groups"] for rule in group["rules"]
]
RUNBOOK = (FOLDER / "runbook.md").read_text("utf-8")


class Panel(NamedTuple):
    """A panel and where it is."""

    board: str
    row: str
    json: dict[str, Any]

    @property
    def title(self) -> str:
        """What tells it from all others."""
        return f"{self.board}: {self.row}: {self.json['title']}"

    @property
    def expressions(self) -> list[str]:
        """What it asks."""
        return [target["expr"] for target in self.json.get("targets", [])]


def _panels() -> list[Panel]:
    found: list[Panel] = []
    for name, board in sorted(BOARDS.items()):
        row = ""
        for panel in board["panels"]:
            if panel["type"] == "row":
                row = panel["title"]
            else:
                found.append(Panel(name.removesuffix(".json"), row, panel))
    return found


PANELS = _panels()
DECLARED: dict[str, set[str]] = {}
"""Labels by series, as they follow from ``telemetry/_names.py``."""
for metric in _names.METRICS:
    labels = {label(attribute) for attribute in metric.attributes}
    if metric.kind == "histogram":
        DECLARED[f"{family(metric.name)}_bucket"] = labels | {"le"}
        DECLARED |= {f"{family(metric.name)}_{suffix}": labels for suffix in ("count", "sum")}
    else:
        DECLARED[family(metric.name)] = labels

WORDS = {
    *(
        "sum",
        "min",
        "max",
        "avg",
        "count",
        "topk",
        "bottomk",
        "by",
        "on",
        "and",
        "or",
        "unless",
        "offset",
        "group_left",
    ),
    *("rate", "increase", "histogram_quantile", "label_replace", "label_values", "time", "vector"),
    *("avg_over_time", "min_over_time", "max_over_time"),
}
OTHER_LABELS = {"job", "instance", "phase"}


def names(promql: str) -> set[str]:
    """Return the metrics and labels that an expression names."""
    without_texts = re.sub(r'"[^"]*"', "", promql)
    without_ranges = re.sub(r"\[[^\]]*\]|offset \w+|\$\w+", "", without_texts)
    return set(re.findall(r"(?<![\w.])[a-zA-Z_:][\w:]*", without_ranges)) - WORDS
