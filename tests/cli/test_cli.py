"""The command line does what it says, and its exit status can be relied on."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import subprocess
import sys
import threading
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from aiohttp_hardened._cli import main
from aiohttp_hardened.testing import HTTPServer, ThrowawayCA, TLSServer, refusing_address

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def running(server: HTTPServer) -> Iterator[HTTPServer]:
    """Run a server on a loop and a thread of its own: ``main()`` has a loop too."""
    started, over = threading.Event(), threading.Event()

    async def serve() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        async with server:
            started.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(10)
    try:
        yield server
    finally:
        over.set()
        thread.join()


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw for a terminal of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")


def test_the_demo_shows_every_ending(capsys: pytest.CaptureFixture[str]) -> None:
    """The demo needs nothing from outside, shows what it promises in 80 columns, and succeeds."""
    assert main(["demo"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "Cold:",
        "Reused:",
        "Coalesced:",
        "Dead first address:",
        "Refused:",
        "Certificate refused:",
        "Cancelled:",
    ):
        assert words in shown
    for words in (
        "coalesced",
        "address overtaken",
        "connection_refused",
        "certificate_authority_invalid",
        "cancelled",
        "reused",
        "Histograms",
        "tls_handshake",
    ):
        assert words in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_the_demo_serves_metrics() -> None:
    """``--metrics-port`` serves the same metrics for Prometheus, for as long as ``--duration`` says."""
    command = [sys.executable, "-m", "aiohttp_hardened", "demo", "--metrics-port", "0", "--duration", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = (re.match(r"Serving (http://\S+) for 1 s", line) for line in process.stdout)
        url = next(match[1] for match in found if match)
        with urllib.request.urlopen(url) as response:  # noqa: S310  (loopback)
            assert b"aiohttp_client_tls_handshake_duration_seconds_bucket" in response.read()
        _, errors = process.communicate(timeout=30)
        assert (0, "") == (process.returncode, errors)


def test_a_probe_that_goes_well(capsys: pytest.CaptureFixture[str], throwaway_ca: ThrowawayCA) -> None:
    """A probe draws each phase, says how often a connection was reused, and succeeds."""
    with running(TLSServer(throwaway_ca.issue("localhost", "127.0.0.1"))) as server:
        assert main(["probe", server.url(), "-n", "3", "--ca-file", str(throwaway_ca.ca_file)]) == 0
    shown = capsys.readouterr().out
    assert "3 requests, 3 went well, 2 on a reused connection" in shown
    assert re.search(r"handshake +━+ +\d+\.\d ms TLS 1\.3", shown)


def probe_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, Any]:
    status = main(["probe", "--json", *arguments])
    return status, json.loads(capsys.readouterr().out)["probes"]


def test_a_probe_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` prints one document with the records of each attempt."""
    with running(HTTPServer()) as server:
        status, (probe,) = probe_json(capsys, server.url("/redirect?to=/"))
    assert (0, True, 200) == (status, probe["ok"], probe["status"])
    assert [["tcp", "connection setup", "request", "body"], ["request", "body"]] == [
        [record["phase"] for record in attempt] for attempt in probe["attempts"]
    ]


def test_a_probe_of_an_error_status_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """A status from 400 up is no success."""
    with running(HTTPServer()) as server:
        status, (probe,) = probe_json(capsys, server.url("/status/404"))
    assert (1, False, 404, None) == (status, probe["ok"], probe["status"], probe["failed_phase"])


def test_a_failed_phase_is_named_with_advice(capsys: pytest.CaptureFixture[str], throwaway_ca: ThrowawayCA) -> None:
    """What failed stands in one line, and what to look at in the next."""
    with running(TLSServer(throwaway_ca.issue_untrusted("127.0.0.1"))) as server:
        assert main(["probe", server.url(), "--ca-file", str(throwaway_ca.ca_file)]) == 1
    shown = capsys.readouterr().out
    assert "failed in tls: tls handshake with 127.0.0.1" in shown
    assert "look at: nobody trusted signed it" in shown


def test_a_refused_probe_names_the_phase(capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON names the phase and its word."""
    with refusing_address() as (host, port):
        status, (probe,) = probe_json(capsys, f"http://{host}:{port}/")
    assert (1, "tcp", "connection_refused") == (status, probe["failed_phase"], probe["error_type"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["probe", "ftp://127.0.0.1/"], "no URL that begins with http:// or https://"),
        (["probe", "http://127.0.0.1/", "--ca-file", "/nowhere.pem"], "tls.ca_files names '/nowhere.pem'"),
        (["probe", "http://127.0.0.1/", "--resolver", "127.0.0.1:99999"], "dns.nameservers holds"),
    ],
)
def test_wrong_arguments(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong arguments end with status 2 and one clear sentence."""
    assert main(arguments) == 2
    assert words in " ".join(capsys.readouterr().err.split())


def test_without_rich(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing extra is named with the command that installs it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert main(["probe", "http://127.0.0.1/"]) == 2
    assert "pip install 'aiohttp-hardened[demo]'" in capsys.readouterr().err
