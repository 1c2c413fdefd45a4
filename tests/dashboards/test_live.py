"""A real Prometheus looks at faulty traffic on both roads: nothing that is shipped stays empty, and names are true."""

from __future__ import annotations

import itertools
import math
import re
import time
from typing import Any

import pytest

from tests.dashboards._prometheus import Prometheus
from tests.dashboards._shipped import BOARDS, DECLARED, PANELS, RULES, Panel

ROADS = ("scraped", "pushed")
SECONDS = 30.0
INFRASTRUCTURE = {"__name__", "job", "instance"}

EMPTY_BY_DESIGN = {
    "AiohttpResumptionCollapsed": "needs an hour of history to compare with; test_rules.py has it",
    "AiohttpContextsGrowing": "needs half an hour of history; test_rules.py has it",
    "quantile 0.99": "needs 300 connects to one server",
    "quantile 0.995": "needs 600 connects to one server; test_rules.py has them",
    "quantile 0.999": "needs 3,000 connects to one server; test_rules.py has them",
}


def title(rule: dict[str, Any]) -> str:
    """Return what tells a rule from all others."""
    quantile = rule["labels"].get("quantile") if "record" in rule and "labels" in rule else None
    return f"quantile {quantile}" if quantile else rule.get("alert") or rule["record"]


def filled(expression: str, road: str) -> str:
    """Return a panel's expression as Grafana asks it for the job of one road."""
    return re.sub(r"\$(instance|host)", ".*", expression.replace("$__rate_interval", "10s").replace("$job", road))


def data(prometheus: Prometheus, expression: str, job: str | None = None) -> list[dict[str, str]]:
    """Return the labels of what an expression gives; wait for it, for rare faults take their time."""
    deadline = time.monotonic() + SECONDS
    while True:
        samples = prometheus.query(expression)
        found = [sample["metric"] for sample in samples if not math.isnan(float(sample["value"][1]))]
        found = [labels for labels in found if job is None or labels["job"] == job]
        if found or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


@pytest.mark.parametrize("panel", PANELS, ids=[panel.title for panel in PANELS])
def test_a_panel_shows_data(panel: Panel, prometheus: Prometheus) -> None:
    """Each query of a panel has data on either road, and what its legend needs."""
    for target, road in itertools.product(panel.json["targets"], ROADS):
        found = data(prometheus, filled(target["expr"], road))
        assert found, target["expr"]
        for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
            assert any(labels.get(label) for labels in found), f"no {label} for the legend of {target['expr']}"


@pytest.mark.parametrize("rule", RULES, ids=title)
def test_a_rule_gives_data(rule: dict[str, Any], prometheus: Prometheus) -> None:
    """Each rule's expression has data on either road, or is empty by design."""
    if title(rule) in EMPTY_BY_DESIGN:
        prometheus.query(rule["expr"])
        return
    for road in ROADS:
        assert data(prometheus, rule["expr"], road), rule["expr"]


def test_rules_are_evaluated(prometheus: Prometheus) -> None:
    """Prometheus finds nothing wrong with any rule, and what it would tell a pager is complete."""
    assert data(prometheus, 'ALERTS{alertname="AiohttpReloadRejected", alertstate="firing"}')
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(RULES) == len(rules)
    assert [] == [rule["name"] for rule in rules if rule["health"] != "ok"]
    alerts = prometheus.get("alerts")["alerts"]
    assert {rule["alert"] for rule in RULES if "alert" in rule} - set(EMPTY_BY_DESIGN) == {
        alert["labels"]["alertname"] for alert in alerts
    }
    for alert in alerts:
        for text in alert["annotations"].values():
            assert not re.search(r"<no value>|error expanding|\{\{|NaN|  | :|^ | $", text), text


@pytest.mark.parametrize("road", ROADS)
def test_names_are_what_is_emitted(road: str, prometheus: Prometheus) -> None:
    """Metrics and labels of ``telemetry/_names.py`` arrive under the names that dashboards use: all, and no others."""
    emitted: dict[str, set[str]] = {}
    for labels in prometheus.get("series", **{"match[]": f'{{job="{road}", __name__!~".*:.*|ALERTS.*"}}'}):
        emitted.setdefault(labels["__name__"], set()).update(labels)
    # What prometheus_client and the scrape itself tell.
    foreign = re.compile(r"(python|process|scrape)_.*|up|target_info")
    found = {
        name: {label for label in labels - INFRASTRUCTURE if not label.startswith("otel_scope_")}
        for name, labels in emitted.items()
        if not foreign.fullmatch(name)
    }
    assert DECLARED == found


def test_roads_write_le_differently(prometheus: Prometheus) -> None:
    """Why nothing may ask for ``le`` as text: the roads write one edge in two ways."""
    edges = {
        road: {
            labels["le"]
            for labels in prometheus.get("series", **{"match[]": f'dns_lookup_duration_seconds_bucket{{job="{road}"}}'})
        }
        for road in ROADS
    }
    assert edges["scraped"] != edges["pushed"]
    assert [{float(edge) for edge in edges[road]} for road in ROADS] == [{float(edge) for edge in edges["pushed"]}] * 2


@pytest.mark.parametrize("road", ROADS)
def test_percentiles_tell_apart(road: str, prometheus: Prometheus) -> None:
    """Buckets are fine enough: p50 lies below p95 for each phase, in milliseconds for the good ones."""
    for panel in PANELS:
        if (panel.board, panel.row) == ("connection-setup", "Percentiles"):
            median, _, high = (filled(expression, road) for expression in panel.expressions)
            assert data(prometheus, f"{median} < {high}"), panel.title
            assert data(prometheus, f"{median} < 0.1"), panel.title


@pytest.mark.parametrize("road", ROADS)
def test_variables_have_values(road: str, prometheus: Prometheus) -> None:
    """Whoever opens a dashboard can choose a job, an instance and a host."""
    for board in BOARDS.values():
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                query = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])
                assert query is not None
                values = {labels[query[2]] for labels in data(prometheus, filled(query[1], road))}
                assert values
                assert {"job": road, "host": "shop.test"}.get(variable["name"], min(values)) in values
