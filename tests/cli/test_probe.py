"""A probe draws what happened, and its exit status can be relied on."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from aiohttp_hardened import TLSSettings
from aiohttp_hardened._cli import _parser, main
from aiohttp_hardened._cli._probe import _settings
from aiohttp_hardened.testing import (
    FakeNameServer,
    HTTPServer,
    ThrowawayCA,
    TLSServer,
    refusing_address,
    scripted_proxy,
)
from tests.cli._types import Probe, ProbeJSON, Running

ROOT = Path(__file__).parent.parent.parent


def phases(attempt: dict[str, Any]) -> list[str]:
    return [each["phase"] for each in attempt["phases"]]


def test_repeats_are_drawn_once_and_summed_up(probe: Probe, running: Running, throwaway_ca: ThrowawayCA) -> None:
    """Each way that requests went is drawn once; the summary says how often a connection was reused."""
    server = running(TLSServer(throwaway_ca.issue("127.0.0.1")))
    status, shown = probe(server.url(), "-n", "5", "--ca-file", str(throwaway_ca.ca_file))
    assert status == 0
    assert shown.count(f" GET {server.url()}\n") == 2
    assert " and 3 more like it\n" in shown
    assert " 5 requests, 5 went well, 4 on a reused connection\n" in shown
    assert re.search(r"^   tls +1 +(\d+\.\d ms) +\1 +\1$", shown, re.MULTILINE)
    assert re.search(r"^   request +5( +\d+\.\d ms){3}$", shown, re.MULTILINE)
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_names_are_asked_of_the_given_server(probe_json: ProbeJSON, running: Running) -> None:
    """``--resolver`` is who is asked, and the lookup is a phase."""
    server = running(HTTPServer())
    with FakeNameServer() as names:
        names.set("x.test", server.host)
        status, document = probe_json(server.url(host="x.test"), "--resolver", names.address)
    (attempt,) = document["probes"][0]["attempts"]
    assert status == 0
    assert ["dns", "tcp", "connection setup", "request", "body"] == phases(attempt)
    assert "lookup" == attempt["phases"][0]["attributes"]["aiohttp.client.dns.source"]


def test_the_systems_resolver(probe_json: ProbeJSON, running: Running) -> None:
    """``--resolver system`` asks the system."""
    server = running(HTTPServer())
    _, document = probe_json(server.url(host="localhost"), "--resolver", "system")
    lookup = document["probes"][0]["attempts"][0]["phases"][0]
    assert "system" == lookup["attributes"]["aiohttp.client.dns.source"]


def test_each_hop_is_an_attempt(probe_json: ProbeJSON, running: Running) -> None:
    """A redirect is followed; each hop is a send of its own, the last one on the connection of the first."""
    server = running(HTTPServer())
    status, document = probe_json(server.url("/redirect?to=/"))
    first, second = document["probes"][0]["attempts"]
    assert status == 0
    assert (302, 0, False) == (first["status"], first["resend_count"], first["reused"])
    assert (200, 1, True) == (second["status"], second["resend_count"], second["reused"])
    assert ["request", "body"] == phases(second)


@pytest.mark.parametrize("code", [404, 503])
def test_an_error_status_fails(probe_json: ProbeJSON, running: Running, code: int) -> None:
    """A status from 400 up is no success, though the connection was fine."""
    server = running(HTTPServer())
    status, document = probe_json(server.url(f"/status/{code}"))
    (found,) = document["probes"]
    assert (1, False, code) == (status, document["ok"], found["status"])
    assert ("request", str(code)) == (found["failure"]["phase"], found["failure"]["error_type"])


def test_a_refused_connection(probe: Probe) -> None:
    """The failed phase stands in one line with what to look at; the message says what was measured."""
    with refusing_address() as (host, port):
        status, shown = probe(f"http://{host}:{port}/")
    assert status == 1
    assert (
        " failed in tcp: connection_refused: nothing listens there; look at the port, and whether the service runs\n"
    ) in shown
    assert re.search(rf"^ tcp connect to {host}:{port} failed: connection_refused \(", shown, re.MULTILINE)


def test_an_authority_that_is_not_trusted(probe_json: ProbeJSON, running: Running, throwaway_ca: ThrowawayCA) -> None:
    """A certificate that nobody vouches for fails in tls."""
    server = running(TLSServer(throwaway_ca.issue_untrusted("127.0.0.1")))
    status, document = probe_json(server.url(), "--ca-file", str(throwaway_ca.ca_file))
    failure = document["probes"][0]["failure"]
    assert (1, "tls", "certificate_authority_invalid") == (status, failure["phase"], failure["error_type"])
    assert "--ca-file" in failure["look_at"]


def test_a_file_is_trusted_instead_of_certifi(probe: Probe, running: Running, throwaway_ca: ThrowawayCA) -> None:
    """Without ``--ca-file`` the throwaway authority is nobody; with it, certifi's are."""
    server = running(TLSServer(throwaway_ca.issue("127.0.0.1")))
    arguments = _parser().parse_args(["probe", server.url(), "--ca-file", str(throwaway_ca.ca_file)])
    assert TLSSettings(trust="none", ca_files=(str(throwaway_ca.ca_file),)) == _settings(arguments).tls
    assert probe(server.url())[0] == 1
    assert probe(server.url(), "--ca-file", str(throwaway_ca.ca_file))[0] == 0


def test_a_client_certificate(probe: Probe, running: Running, throwaway_ca: ThrowawayCA) -> None:
    """``--client-cert`` and ``--client-key`` are shown to the server."""
    server = running(TLSServer(throwaway_ca.issue("127.0.0.1"), client_ca=throwaway_ca.ca_file))
    client = throwaway_ca.issue_client("somebody")
    arguments = [server.url(), "--ca-file", str(throwaway_ca.ca_file)]
    assert probe(*arguments)[0] == 1
    assert probe(*arguments, "--client-cert", str(client.cert_file), "--client-key", str(client.key_file))[0] == 0


def test_through_a_proxy(probe_json: ProbeJSON, running: Running, throwaway_ca: ThrowawayCA) -> None:
    """``--proxy`` puts a tunnel between tcp and tls."""
    server = running(TLSServer(throwaway_ca.issue("127.0.0.1")))
    proxy = running(scripted_proxy(target=(server.host, server.port)))
    status, document = probe_json(server.url(), "--ca-file", str(throwaway_ca.ca_file), "--proxy", proxy)
    assert status == 0
    assert ["tcp", "tunnel", "tls", "connection setup", "request", "body"] == phases(
        document["probes"][0]["attempts"][0]
    )


def test_a_proxy_that_refuses(probe: Probe, running: Running, throwaway_ca: ThrowawayCA) -> None:
    """A proxy's 407 fails in tunnel, and the credentials for it are shown nowhere."""
    proxy = running(scripted_proxy(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n"))
    status, shown = probe("https://127.0.0.1:1/", "--proxy", proxy.replace("//", "//user:SECRET@"))
    assert status == 1
    assert " failed in tunnel: proxy_authentication_required: the proxy wants other credentials; look at " in shown
    assert "SECRET" not in shown


@pytest.mark.parametrize("path", ["/slow?seconds=5&token=SECRET", "/cut?token=SECRET", "/status/500?token=SECRET"])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_secrets_are_not_shown(probe: Probe, running: Running, path: str, flags: list[str]) -> None:
    """Credentials and the values of a query are shown nowhere, however the request ends."""
    server = running(HTTPServer())
    status, shown = probe(server.url(path).replace("//", "//SECRET:SECRET@"), "--timeout", "0.3", *flags)
    assert status == 1
    assert "token=REDACTED" in shown
    assert "SECRET" not in shown


def test_the_whole_request_is_limited(probe_json: ProbeJSON, running: Running) -> None:
    """``--timeout`` ends a request whose answer does not come."""
    server = running(HTTPServer())
    status, document = probe_json(server.url("/slow?seconds=30"), "--timeout", "0.2")
    failure = document["probes"][0]["failure"]
    assert (1, "request", "TimeoutError") == (status, failure["phase"], failure["error_type"])
    assert "the total budget of 0.20 s ran out" in failure["message"]


def test_a_body_that_is_cut(probe_json: ProbeJSON, running: Running) -> None:
    """An answer that does not come to its end is no success."""
    server = running(HTTPServer())
    status, document = probe_json(server.url("/cut"))
    (found,) = document["probes"]
    assert (1, 200, "body") == (status, found["status"], found["failure"]["phase"])


def test_one_bad_url_among_good_ones(probe_json: ProbeJSON, running: Running) -> None:
    """All URLs are probed; one that fails makes the status 1."""
    server = running(HTTPServer())
    with refusing_address() as (host, port):
        status, document = probe_json(f"http://{host}:{port}/", server.url(), "-n", "2")
    assert status == 1
    assert [False, True, False, True] == [each["ok"] for each in document["probes"]]
    assert [(2, 0), (2, 2)] == [(each["requests"], each["ok"]) for each in document["summaries"]]


def keys(value: Any) -> Any:
    """Return the shape of a document: its keys, and the shape of each list's first item."""
    if isinstance(value, dict):
        return {key: keys(each) for key, each in value.items() if key != "attributes"}
    return [keys(value[0])] if isinstance(value, list) and value else None


PHASE = {
    "phase": None,
    "start_ns": None,
    "duration_s": None,
    "server_address": None,
    "server_port": None,
    "error_type": None,
    "cancelled": None,
    "events": [{"name": None, "time_ns": None}],
}
FAILURE = {"phase": None, "error_type": None, "meaning": None, "look_at": None, "message": None}
FIGURES = {"count": None, "min_s": None, "median_s": None, "max_s": None}
DOCUMENT = {
    "ok": None,
    "probes": [
        {
            "url": None,
            "ok": None,
            "status": None,
            "failure": FAILURE,
            "attempts": [
                {
                    "method": None,
                    "url": None,
                    "status": None,
                    "reused": None,
                    "resend_count": None,
                    "phases": [PHASE],
                }
            ],
        }
    ],
    "summaries": [
        {
            "url": None,
            "requests": None,
            "ok": None,
            "reused": None,
            "phases": {"tcp": FIGURES, "connection setup": FIGURES, "request": FIGURES},
        }
    ],
}


def test_the_document(probe_json: ProbeJSON, capsys: pytest.CaptureFixture[str]) -> None:
    """The document has the fields that ``--help`` lists, and no others."""
    with refusing_address() as (host, port):
        _, document = probe_json(f"http://{host}:{port}/")
    assert DOCUMENT == keys(document)
    with pytest.raises(SystemExit):
        main(["probe", "--help"])
    documented = set(re.findall(r"\w+", capsys.readouterr().out))
    named = re.findall(r"'(\w+)'", str(DOCUMENT))
    assert set() == set(named) - documented - {"tcp"}


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is no signal there")
def test_an_interrupted_probe(running: Running) -> None:
    """Ctrl-C ends it with status 130 and shows what there is by then, without a traceback."""
    server = running(HTTPServer())
    command = [sys.executable, "-m", "aiohttp_hardened", "probe", server.url("/slow?seconds=0.1"), "-n", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        deadline = time.monotonic() + 20
        while len(server.requests) < 3 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        shown, errors = process.communicate(timeout=20)
    assert (130, "") == (process.returncode, errors)
    assert "went well" in shown
