"""The export is what the package ships, for the data source and the road that were asked for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aiohttp_hardened._cli import main

ROOT = Path(__file__).parent.parent.parent
SHIPPED = ROOT / "aiohttp_hardened" / "dashboards"
FILES = {"overview.json", "connection-setup.json", "tls.json", "dns.json", "pool.json", "rules.yml", "runbook.md"}


def exported(directory: Path, *arguments: str) -> dict[str, str]:
    assert main(["dashboards", "--output", str(directory), *arguments]) == 0
    return {path.name: path.read_text("utf-8") for path in directory.iterdir()}


def panels(board: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(board)["panels"]
    return [panel for panel in found if panel["type"] != "row"]


def test_the_files_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--list``, or no directory, names each file with what it is, and writes none."""
    monkeypatch.chdir(tmp_path)
    for arguments in (["--list"], [], ["--list", "--output", "somewhere"]):
        assert main(["dashboards", *arguments]) == 0
        lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        assert FILES == set(lines)
        assert "Prometheus: 17 recording and 13 alerting rules" == lines["rules.yml"]
        assert lines["dns.json"].startswith("Grafana: Where addresses come from")
    assert [] == list(tmp_path.iterdir())


def test_the_files_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--output`` writes each file as it is shipped, into a directory that it makes, and names it."""
    directory = tmp_path / "grafana" / "aiohttp"
    assert {name: (SHIPPED / name).read_text("utf-8") for name in FILES} == exported(directory)
    assert {str(directory / name) for name in FILES} == set(capsys.readouterr().out.split())


def test_a_data_source(tmp_path: Path) -> None:
    """``--datasource`` is named in each place, and nobody is asked to choose one."""
    for name, text in exported(tmp_path, "--datasource", "prom-1").items():
        if name.endswith(".json"):
            assert "${datasource}" not in text
            assert ["job", "instance", "host"] == [each["name"] for each in json.loads(text)["templating"]["list"]]
            assert all(
                "prom-1" == each["datasource"]["uid"] for panel in panels(text) for each in (panel, *panel["targets"])
            )


def test_roads(tmp_path: Path) -> None:
    """Names are the same on both roads; what is pushed once a minute is not asked for more often."""
    scraped, pushed = (exported(tmp_path / road, "--road", road) for road in ("prometheus", "otlp"))
    assert scraped["rules.yml"] == pushed["rules.yml"]
    for name in FILES:
        if name.endswith(".json"):
            assert [None] * len(panels(scraped[name])) == [panel.get("interval") for panel in panels(scraped[name])]
            assert {"1m"} == {panel["interval"] for panel in panels(pushed[name])}
            targets = [[panel["targets"] for panel in panels(road[name])] for road in (scraped, pushed)]
            assert targets[0] == targets[1]


def test_what_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file in the way is named in one line; the status is 1."""
    taken = tmp_path / "taken"
    taken.touch()
    assert main(["dashboards", "--output", str(taken)]) == 1
    assert f"aiohttp-hardened dashboards: {taken}: File exists\n" == capsys.readouterr().err


def test_wrong_road(capsys: pytest.CaptureFixture[str]) -> None:
    """A road that there is not ends with status 2 and the two there are."""
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["dashboards", "--road", "statsd"])
    error = capsys.readouterr().err
    assert "prometheus" in error
    assert "otlp" in error


def test_it_needs_no_extra(tmp_path: Path) -> None:
    """Neither rich nor the tool that makes dashboards is needed to export them."""
    code = (
        "import sys\n"
        "for name in ('rich', 'trustme', 'yaml', 'grafana_foundation_sdk', 'tools'): sys.modules[name] = None\n"
        f"from aiohttp_hardened._cli import main; sys.exit(main(['dashboards', '--output', {str(tmp_path)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, cwd=ROOT, timeout=60
    )
    assert (0, "") == (done.returncode, done.stderr)
    assert FILES == {path.name for path in tmp_path.iterdir()}
