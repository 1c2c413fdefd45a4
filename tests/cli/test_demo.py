"""The demo shows what it promises, and leaves nothing behind."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

from aiohttp_hardened._cli import _demo, _stage, main

ROOT = Path(__file__).parent.parent.parent
ENDINGS = {
    "Cold": r" 200$.* connection setup .* dns .* ok, lookup, .* tcp .* tls .* ok, TLS 1\.[23].* body .* complete$",
    "Reused": r"request .* 200, reused$(?!.*connection setup)",
    "Coalesced": r"ok, lookup, .*ok, coalesced, ",
    "Dead first address": r"dns .* 2 addresses$.* tcp .* ms  ok, .* overtaken$",
    "Refused": r"request .* failed in tcp$.* connection setup .* failed in tcp$.* tcp .* connection_refused",
    "Certificate refused": r"request .* failed in tls$.* tcp .* ok, .* tls .* certificate_authority_invalid$",
    "Cancelled": r"request .* cancelled$.* connection setup .* cancelled$.* tcp .* ok, .* tls .* cancelled$",
}


@pytest.fixture(scope="module")
def shown() -> str:
    """What the demo prints."""
    # aiohttp 3.14.1's own server sets an attribute that its dev mode warns of.
    theirs = "ignore:Setting custom Request._transport_sockname:DeprecationWarning"
    result = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-W", theirs, "-m", "aiohttp_hardened", "demo"],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
        timeout=100,
        check=False,
    )
    assert (0, "") == (result.returncode, re.sub(r"Executing <.*> took [\d.]+ seconds\n", "", result.stderr))
    return result.stdout


@pytest.mark.parametrize("name", ENDINGS)
def test_an_ending(shown: str, name: str) -> None:
    """Each ending that is promised is drawn under its name, with one line on what there is to see."""
    found = re.search(rf"^{name}: \S.*?\n(.*?)\n\n", shown, re.MULTILINE | re.DOTALL)
    assert found is not None, shown
    assert re.search(ENDINGS[name], found[1], re.MULTILINE | re.DOTALL), found[1]


def test_the_dead_address_costs_one_delay(shown: str) -> None:
    """The race over the dead address takes the Happy Eyeballs delay of 0.25 s at least."""
    found = re.search(r"^     tcp +\S+ +(\d+\.\d) ms  .*\n +127\.0\.0\.2 overtaken$", shown, re.MULTILINE)
    assert found is not None, shown
    assert 250 <= float(found[1]) < 3000


def test_histograms(shown: str) -> None:
    """The histograms stand in a table, counted as the requests were drawn."""
    _, _, table = shown.partition("\nHistograms\n")
    for name in (
        "http.client.request.duration",
        "http.client.connection.duration",
        "dns.lookup.duration",
        "aiohttp.client.tcp_connect.duration",
        "aiohttp.client.tls_handshake.duration",
        "aiohttp.client.connection_setup.duration",
    ):
        assert f" {name} " in table
    section = table.partition(" http.client.request.duration ")[2]
    assert re.search(r"^   shop\.test 200 +2 ", section, re.MULTILINE)
    assert re.search(r"^   closed\.test tcp_connection_refused +1 ", section, re.MULTILINE)
    lookups = table.partition(" dns.lookup.duration ")[2].partition("\n http.")[0]
    assert re.search(r"^   pair\.test +1 ", lookups, re.MULTILINE), "a lookup that is waited for is one lookup"


def test_80_columns(shown: str) -> None:
    """Everything is readable in 80 columns."""
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No file, thread or descriptor outlives the demo; the fixtures of this suite see to the latter two."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert main(["demo"]) == 0
    assert [] == list(tmp_path.iterdir())
    assert "This should have ended" not in capsys.readouterr().out


def test_a_surprise_is_a_failure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A request that does not end as announced makes the status 1."""
    act = _stage.Act(_stage.REFUSED, "this will not go well.", "200", _stage._get)
    monkeypatch.setattr(_demo, "ACTS", (act,))
    assert main(["demo"]) == 1
    assert "This should have ended with 200, not with tcp_connection_refused." in capsys.readouterr().out


def test_a_system_without_dead_addresses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What a system cannot show is said, and is no failure."""
    monkeypatch.setattr(_stage, "_open_dead_address", lambda *_: None)
    assert main(["demo"]) == 0
    assert "Dead first address: this system cannot show it.\n" in capsys.readouterr().out


def serving(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start the demo with metrics; return it and their URL once it serves."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "aiohttp_hardened", "demo", "--metrics-port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.match(r"Serving (http://\S+) for", line):
            return process, found[1]
    raise AssertionError(process.communicate()[1])


def requests_of(url: str) -> float:
    with urllib.request.urlopen(url) as response:  # noqa: S310  (loopback)
        text = response.read().decode()
    assert "aiohttp_client_tls_handshake_duration_seconds_bucket" in text
    found = re.findall(r"^http_client_request_duration_seconds_count\{.*\} ([\d.]+)$", text, re.MULTILINE)
    return sum(map(float, found))


def test_metrics_for_prometheus() -> None:
    """``--metrics-port`` goes on with the requests for as long as ``--duration`` says, and serves their metrics."""
    process, url = serving("--duration", "4")
    with process:
        first = latest = requests_of(url)
        while latest == first:
            time.sleep(0.05)
            latest = requests_of(url)
        _, errors = process.communicate(timeout=30)
    assert 8 <= first < latest
    assert (0, "") == (process.returncode, errors)


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is no signal there")
def test_metrics_until_ctrl_c() -> None:
    """While it serves, Ctrl-C is how to end it: status 0, no traceback."""
    process, _ = serving()
    with process:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (0, "") == (process.returncode, errors)


def test_metrics_on_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    """A port that is taken ends with status 2 and one line."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["demo", "--metrics-port", str(port)]) == 2
    assert f"aiohttp-hardened demo: --metrics-port {port}: Address already in use\n" == capsys.readouterr().err


def test_metrics_without_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without the exporter, one line names the extra, and the status is 2."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.prometheus", None)
    assert main(["demo", "--metrics-port", "0"]) == 2
    assert capsys.readouterr().err.endswith("it needs pip install 'aiohttp-hardened[demo,prometheus]'\n")
