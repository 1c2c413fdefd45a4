"""The rules and the runbook, of one table of alerts."""

from __future__ import annotations

from typing import Any, Final

import yaml

from tools.dashboards import _alerts_connect, _alerts_process, _alerts_tls
from tools.dashboards._recordings import recordings

ALERTS: Final = (*_alerts_connect.ALERTS, *_alerts_tls.ALERTS, *_alerts_process.ALERTS)

_RULES_HEAD: Final = """\
# Prometheus rules for aiohttp-hardened. Made by `python -m tools.dashboards`; do not edit.
# The names are those of the Python Prometheus exporter, of the OpenTelemetry collector and of
# Prometheus' OTLP receiver, each with its default translation.
"""

_RUNBOOK_HEAD: Final = """\
# Runbook

<!-- Made by `python -m tools.dashboards`; do not edit. -->

One section for each alert of `rules.yml`: what it means, how to confirm it with `aiohttp-hardened probe`, how to fix
it. Run the probe where the service runs: in its container, with its `/etc/resolv.conf`, its proxy and its certificates
(`--resolver`, `--proxy`, `--ca-file`, `--client-cert`, `--client-key`).
It needs `pip install 'aiohttp-hardened[demo]'`.

Severity `critical`: connections fail now, or will for certain. Severity `warning`: look at it today.

Counters count from the first failure on, so a series that is seen for the first time counts with all it has. When
Prometheus begins to scrape a process that has run for long, what happened before counts once, for the length of the
alert's window.
"""


class _Dumper(yaml.SafeDumper):
    """Writes expressions of several lines as they are, and lists indented."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002
        super().increase_indent(flow, indentless=False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style)


_Dumper.add_representer(str, _text)


def rules() -> str:
    """Return the rules file."""
    groups: list[dict[str, Any]] = [
        {"name": "aiohttp-hardened-recordings", "rules": recordings()},
        {"name": "aiohttp-hardened-alerts", "rules": [alert.rule() for alert in ALERTS]},
    ]
    return _RULES_HEAD + yaml.dump({"groups": groups}, Dumper=_Dumper, sort_keys=False, width=10_000)


def runbook() -> str:
    """Return the runbook, in Markdown."""
    contents = "\n".join(f"- [{alert.name}](#{alert.name.lower()})" for alert in ALERTS)
    return "\n".join([_RUNBOOK_HEAD, contents, "", *(alert.section() for alert in ALERTS)])
