"""What is shipped is what the sources make, complete, and free of what breaks on one road."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.dashboards._shipped import BOARDS, DECLARED, FOLDER, OTHER_LABELS, PANELS, RULES, RUNBOOK, Panel, names
from tools.dashboards.__main__ import generated

ROOT = Path(__file__).parent.parent.parent
EXPRESSIONS = [expression for panel in PANELS for expression in panel.expressions] + [rule["expr"] for rule in RULES]
ALERTS = [rule for rule in RULES if "alert" in rule]
each_panel = pytest.mark.parametrize("panel", PANELS, ids=[panel.title for panel in PANELS])


def test_files_are_as_their_sources() -> None:
    """``python -m tools.dashboards`` would change nothing."""
    shipped = {entry.name: entry.read_text("utf-8") for entry in FOLDER.iterdir()}
    assert generated() == shipped


def test_the_boards_are_those_that_are_promised() -> None:
    """Five dashboards, each with an address of its own, and with the variables of all."""
    assert {"overview.json", "connection-setup.json", "tls.json", "dns.json", "pool.json"} == set(BOARDS)
    assert 5 == len({board["uid"] for board in BOARDS.values()})
    for board in BOARDS.values():
        assert ["datasource", "job", "instance", "host"] == [each["name"] for each in board["templating"]["list"]]
        assert re.fullmatch(r"[a-z-]{1,40}", board["uid"])
        assert board["title"].startswith("aiohttp-hardened: ")


@each_panel
def test_a_panel_is_readable(panel: Panel) -> None:
    """Each panel has a title, a description, a unit, and a legend for each line."""
    shown = panel.json
    assert shown["title"]
    assert shown["description"].endswith(".")
    assert shown["fieldConfig"]["defaults"]["unit"] in {"s", "suffix: days", "reqps", "cps", "percentunit", "short"}
    assert panel.expressions
    letters = [target["refId"] for target in shown["targets"]]
    assert letters == sorted(set(letters))
    assert all(target["legendFormat"] for target in shown["targets"])


@each_panel
def test_a_panel_follows_the_variables(panel: Panel) -> None:
    """Each expression is limited to the job and instance that are chosen, and asks the data source that is chosen."""
    for expression in panel.expressions:
        selectors = re.findall(r"\{(.*?)\}", expression)
        assert selectors
        assert all('job=~"$job", instance=~"$instance"' in selector for selector in selectors)
    assert {"type": "prometheus", "uid": "${datasource}"} == panel.json["datasource"]


def test_panels_lie_side_by_side() -> None:
    """No two panels of a dashboard overlap, none is wider than the page, and each has a number of its own."""
    for name, board in BOARDS.items():
        cells = Counter(
            (x, y)
            for panel in board["panels"]
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        )
        assert 1 == max(cells.values()), name
        assert 24 > max(x for x, _ in cells), name
        assert len(board["panels"]) == len({panel["id"] for panel in board["panels"]}), name


def test_expressions_know_only_declared_names() -> None:
    """Metrics and labels are those of ``telemetry/_names.py``, or recorded by a rule."""
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    labels = set().union(*DECLARED.values()) | OTHER_LABELS
    for expression in EXPRESSIONS:
        assert set() == names(expression) - set(DECLARED) - recorded - labels, expression


def test_names_are_found() -> None:
    """The test above would see a wrong name."""
    assert {"wrong_total", "le", "x", "other", "label"} == names(
        'sum by (le, x) (rate(wrong_total{label=~"le|$job"}[5m])) > 0.5 or (other unless other offset 5m)'
    )


def test_nothing_depends_on_what_differs_between_roads() -> None:
    """No expression asks for a scope, which OTLP has not, nor for ``le`` as text: one writes "1.0", another "1"."""
    for expression in EXPRESSIONS:
        assert "otel_scope" not in expression
        assert not re.search(r"\ble\s*(=|!)", expression)
        assert "tls_resumed=" not in expression.replace('tls_resumed=~"(?i)true"', "")


def test_quantiles_are_guarded() -> None:
    """Without traffic a quantile is nothing, not NaN."""
    for panel in PANELS:
        for expression in panel.expressions:
            assert expression.count("histogram_quantile") == expression.count(">= 0"), expression


def test_every_recording_is_used() -> None:
    """What a rule records, another one reads."""
    for rule in RULES:
        if "record" in rule:
            readers = [other["expr"] for other in RULES if other is not rule and rule["record"] in names(other["expr"])]
            assert readers, rule["record"]


@pytest.mark.parametrize("rule", ALERTS, ids=[rule["alert"] for rule in ALERTS])
def test_an_alert_leads_to_its_section(rule: dict[str, dict[str, str]]) -> None:
    """Each alert has a severity, words, and a link to a section that says what it means, how to confirm and to fix."""
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert {"summary", "description", "runbook_url"} == set(rule["annotations"])
    address, anchor = rule["annotations"]["runbook_url"].split("#")
    assert address.endswith("/aiohttp_hardened/dashboards/runbook.md")
    heading = next(line for line in RUNBOOK.splitlines() if line.startswith("## ") and line[3:].lower() == anchor)
    section = RUNBOOK.partition(f"{heading}\n")[2].partition("\n## ")[0]
    assert ["What it means", "How to confirm", "How to fix"] == re.findall(r"^\*\*(.*?)\.\*\*", section, re.MULTILINE)
    assert "aiohttp-hardened probe" in section
    assert f"(#{anchor})" in RUNBOOK


def test_the_runbook_has_no_other_section() -> None:
    """Sections and alerts are the same."""
    assert [rule["alert"] for rule in ALERTS] == re.findall(r"^## (.*)$", RUNBOOK, re.MULTILINE)


@pytest.mark.parametrize("text", ["README.md", "runbook"])
def test_documents_know_only_declared_names(text: str) -> None:
    """Whatever looks like a metric of ours in Prometheus is one."""
    document = RUNBOOK if text == "runbook" else (ROOT / text).read_text("utf-8")
    found = set(re.findall(r"\b(?:http_client|dns_lookup|aiohttp_client)_\w+", document))
    assert set() == found - set(DECLARED) - set().union(*DECLARED.values())
