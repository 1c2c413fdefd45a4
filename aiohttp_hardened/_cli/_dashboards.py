"""The dashboards, rules and runbook that the package ships, written where the user wants them."""

from __future__ import annotations

import json
import sys
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import argparse

_FAILED: Final = 1
_CHOSEN_IN_GRAFANA: Final = "${datasource}"
# The SDK pushes once a minute (OTEL_METRIC_EXPORT_INTERVAL). Without this Grafana takes the data source's scrape
# interval, and a rate over four times 15 s sees one sample: no line.
_PUSH_INTERVAL: Final = "1m"


def run(arguments: argparse.Namespace) -> int:
    """List or write the files; return 0 when all were written.

    Args:
        arguments: What ``dashboards --help`` lists.
    """
    shipped = _shipped()
    if arguments.list or arguments.output is None:
        for name, text in shipped.items():
            print(f"{name:22} {_title(name, text)}")
        return 0
    directory = Path(arguments.output)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in shipped.items():
            adapted = _adapted(text, arguments.datasource, arguments.road) if name.endswith(".json") else text
            (directory / name).write_text(adapted, "utf-8")
            print(directory / name)
    except OSError as exc:
        print(f"aiohttp-hardened dashboards: {exc.filename or directory}: {exc.strerror}", file=sys.stderr)
        return _FAILED
    return 0


def _shipped() -> dict[str, str]:
    folder = files("aiohttp_hardened") / "dashboards"
    named = {entry.name: entry for entry in folder.iterdir() if entry.name.endswith((".json", ".yml", ".md"))}
    return {name: named[name].read_text("utf-8") for name in sorted(named)}


def _title(name: str, text: str) -> str:
    if name.endswith(".json"):
        board: dict[str, Any] = json.loads(text)
        return f"Grafana: {board['description']}"
    return {
        "rules.yml": f"Prometheus: {text.count('- record:')} recording and {text.count('- alert:')} alerting rules",
        "runbook.md": "What each alert means, how to confirm and fix it",
    }[name]


def _adapted(text: str, datasource: str | None, road: str) -> str:
    """Return a dashboard for a data source and a road.

    Args:
        text: The dashboard as it is shipped.
        datasource: UID of Grafana's data source; ``None``: chosen in the dashboard.
        road: ``prometheus`` or ``otlp``.
    """
    board: dict[str, Any] = json.loads(text)
    if road == "otlp":
        for panel in board["panels"]:
            if panel["type"] != "row":
                panel["interval"] = _PUSH_INTERVAL
    if datasource is not None:
        variables: list[dict[str, Any]] = board["templating"]["list"]
        board["templating"]["list"] = [each for each in variables if each["type"] != "datasource"]
        _name_datasource(board, datasource)
    return json.dumps(board, indent=2) + "\n"


def _name_datasource(node: Any, uid: str) -> None:
    """Put a UID wherever the dashboard says that the data source is chosen."""
    if isinstance(node, list):
        for each in node:  # pyright: ignore[reportUnknownVariableType]
            _name_datasource(each, uid)
    elif isinstance(node, dict):
        if node.get("uid") == _CHOSEN_IN_GRAFANA:  # pyright: ignore[reportUnknownMemberType]
            node["uid"] = uid
        for each in node.values():  # pyright: ignore[reportUnknownVariableType]
            _name_datasource(each, uid)
