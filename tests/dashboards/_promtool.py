"""Series as promtool's unit tests have them, and which alerts fire on them."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiohttp_hardened.telemetry import _names
from tools.dashboards._series import family

if TYPE_CHECKING:
    from collections.abc import Iterable

RULES = Path(__file__).parent.parent.parent / "aiohttp_hardened" / "dashboards" / "rules.yml"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is missing: apt-get install prometheus")

Series = dict[str, str]
"""Values by series, in promtool's notation; one value a minute."""

PROCESS = {"job": "shop", "instance": "a:9464"}
SERVER = {**PROCESS, "server_address": "x.test", "server_port": "443"}
NAME = {**PROCESS, "dns_question_name": "x.test"}


def series(metric: str, values: str, **labels: str) -> Series:
    """Return one series of a metric that is no histogram."""
    return {_selector(family(metric), PROCESS | labels): values}


def histogram(
    metric: str, labels: dict[str, str], recorded: dict[float, float], *, of: str = "{0}+{1}x60", le: str = "{}"
) -> Series:
    """Return the series of a histogram.

    Args:
        metric: Its name.
        labels: Of all its series.
        recorded: How often each duration is recorded, in a minute.
        of: How a series grows, in promtool's notation: ``{0}`` and ``{1}`` are its first value and what it gains in a
            minute.
        le: How an edge is written.
    """
    edges = next(each.edges for each in _names.METRICS if each.name == metric)
    name = family(metric)
    total = sum(recorded.values())
    found: Series = {}
    for edge in edges:
        below = sum(count for duration, count in recorded.items() if duration <= edge)
        found[_selector(f"{name}_bucket", labels | {"le": le.format(edge)})] = of.format(0, below)
    found[_selector(f"{name}_bucket", labels | {"le": "+Inf"})] = of.format(0, total)
    found[_selector(f"{name}_count", labels)] = of.format(0, total)
    return found


def _selector(name: str, labels: dict[str, str]) -> str:
    return f"{name}{{{','.join(f'{key}={json.dumps(value)}' for key, value in labels.items())}}}"


Group = dict[str, object]
"""A group of promtool's tests."""


def group(given: Series, *tests: object, interval: str = "1m", kind: str = "promql_expr") -> Group:
    """Return tests on series."""
    return {
        "interval": interval,
        "input_series": [{"series": name, "values": values} for name, values in given.items()],
        f"{kind}_test": list(tests),
    }


def firing(given: Series, fired: Iterable[str], *at: str, interval: str = "1m") -> Group:
    """Return the test that these alerts fire at these times, and no others."""
    alerts = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(fired)]
    expression = 'count by (alertname) (ALERTS{alertstate="firing"})'
    tests = [{"expr": expression, "eval_time": time, "exp_samples": alerts} for time in at]
    return group(given, *tests, interval=interval)


def failures(*groups: Group, rules: Path = RULES) -> str:
    """Return what promtool says of tests; empty if they pass."""
    assert PROMTOOL is not None
    evaluation = groups[0]["interval"]
    document = {"rule_files": [str(rules)], "evaluation_interval": evaluation, "tests": list(groups)}
    # JSON is YAML.
    done = subprocess.run(
        [PROMTOOL, "test", "rules", "/dev/stdin"],
        input=json.dumps(document),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr
