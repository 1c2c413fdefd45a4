"""The doctor reads finished probe runs: one fault each, named alone."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from aiohttp_hardened._cli import main
from aiohttp_hardened._cli._examine_probe import examine_probe
from aiohttp_hardened.testing import (
    FakeNameServer,
    HTTPServer,
    ThrowawayCA,
    TLSServer,
    accept_queue_overflow,
    dead_address,
    refusing_address,
    scripted_proxy,
)
from tests.cli._types import Probe, Running

Diagnose = "Callable[..., tuple[int, list[tuple[str, str | None]]]]"


@pytest.fixture
def diagnose(probe: Probe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Diagnose:
    """Probe, and let the doctor read what it wrote from standard input."""

    def run(*arguments: str) -> tuple[int, list[tuple[str, str | None]]]:
        _, document = probe("--json", *arguments)
        monkeypatch.setattr(sys, "stdin", io.StringIO(document))
        status = main(["doctor", "-", "--json"])
        diagnosis = json.loads(capsys.readouterr().out)
        assert ("probe", "standard input") == (diagnosis["judged"], diagnosis["source"])
        assert all(each["evidence"] and each["fix"] for each in diagnosis["findings"])
        return status, [(each["name"], each["error_type"]) for each in diagnosis["findings"]]

    return run


def test_a_healthy_probe(diagnose: Diagnose, running: Running, throwaway_ca: ThrowawayCA) -> None:
    """A connection that is set up once and then reused is healthy, redirects included."""
    server = running(TLSServer(throwaway_ca.issue("127.0.0.1")))
    ca = ["--ca-file", str(throwaway_ca.ca_file)]
    assert (0, []) == diagnose(server.url(), server.url("/redirect?to=/"), "-n", "6", *ca)


def test_a_dead_first_address(diagnose: Diagnose, running: Running) -> None:
    """The address that was waited for is what is wrong."""
    server = running(HTTPServer())
    with dead_address("127.0.0.2", server.port), FakeNameServer() as names:
        names.set("x.test", "127.0.0.2", server.host)
        assert (1, [("dead_address", None)]) == diagnose(server.url(host="x.test"), "--resolver", names.address)


def test_a_syn_that_was_sent_again(diagnose: Diagnose, running: Running) -> None:
    """An accept queue that overflows is named."""
    host, port = running(accept_queue_overflow(drop_for=0.5))
    assert (1, [("syn_retransmissions", None)]) == diagnose(f"http://{host}:{port}/")


def test_a_connection_per_request(diagnose: Diagnose, running: Running, throwaway_ca: ThrowawayCA) -> None:
    """A server that closes after each answer costs a handshake per request."""
    server = running(TLSServer(throwaway_ca.issue("127.0.0.1")))
    # The second request of each connection is not answered, so aiohttp sends it again on a new one.
    url = server.url("/close-keepalive")
    assert (1, [("handshakes_per_request", None)]) == diagnose(url, "-n", "4", "--ca-file", str(throwaway_ca.ca_file))


def test_a_slow_name_server(diagnose: Diagnose, running: Running) -> None:
    """A lookup above the limit is named."""
    server = running(HTTPServer())
    with FakeNameServer() as names:
        names.set("x.test", server.host, delay=0.2)
        assert (1, [("dns_slow", None)]) == diagnose(server.url(host="x.test"), "--resolver", names.address)


def test_failures_keep_their_word(diagnose: Diagnose, running: Running, throwaway_ca: ThrowawayCA) -> None:
    """Each failed phase is one finding with its word of the closed list; a status too."""
    server = running(HTTPServer())
    secure = running(TLSServer(throwaway_ca.issue_expired("127.0.0.1")))
    refusing = running(scripted_proxy(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n"))
    glued = running(scripted_proxy(b"HTTP/1.1 200 OK\r\n\r\n220 injected\r\n"))
    ca = ["--ca-file", str(throwaway_ca.ca_file)]
    with FakeNameServer() as names, refusing_address() as (host, port):
        resolver = ["--resolver", names.address]
        assert (1, [("dns_failing", "host_not_found")]) == diagnose("http://x.test/", "-n", "2", *resolver)
        assert (1, [("connect_failing", "connection_refused")]) == diagnose(f"http://{host}:{port}/")
    assert (1, [("tls_failing", "certificate_expired")]) == diagnose(secure.url(), *ca)
    assert (1, [("proxy_refuses", "proxy_authentication_required")]) == diagnose("https://x.test/", "--proxy", refusing)
    assert (1, [("plaintext_before_tls", None)]) == diagnose("https://x.test/", "--proxy", glued)
    assert (1, [("request_failing", "503")]) == diagnose(server.url("/status/503"))


def test_a_certificate_that_ends(diagnose: Diagnose, running: Running, throwaway_ca: ThrowawayCA) -> None:
    """A peer's certificate of three more days is named, one of ten is not."""
    ca = ["--ca-file", str(throwaway_ca.ca_file)]
    for days, expected in ((3, (1, [("certificate_ends", None)])), (10, (0, []))):
        ends = datetime.now(UTC) + timedelta(days=days)
        server = running(TLSServer(throwaway_ca.issue("127.0.0.1", not_after=ends)))
        assert expected == diagnose(server.url(), *ca)


def attempt(*phases: dict[str, Any]) -> dict[str, Any]:
    return {"url": "https://x.test/", "status": 200, "phases": list(phases)}


def phase(name: str, seconds: float, *events: dict[str, Any], **attributes: Any) -> dict[str, Any]:
    return {
        "phase": name,
        "duration_s": seconds,
        "server_address": "x.test",
        "server_port": 443,
        "error_type": None,
        "cancelled": False,
        "attributes": attributes,
        "events": list(events),
    }


def names(*attempts: dict[str, Any]) -> list[str]:
    document = {"probes": [{"url": "https://x.test/", "failure": None, "attempts": list(attempts)}]}
    return [each.name for each in examine_probe(document, now=0.0).all()]


def test_limits_of_a_probe() -> None:
    """The limits are those of metrics: at each nothing is named, above it one finding is."""
    assert [] == names(attempt(phase("dns", 0.05)))
    assert ["dns_slow"] == names(attempt(phase("dns", 0.051)))
    assert ["dns_stale"] == names(attempt(phase("dns", 1.8, **{"aiohttp.client.dns.source": "stale"})))
    assert [] == names(attempt(phase("tls", 1.0)))
    assert ["tls_slow"] == names(attempt(phase("tls", 1.01)))
    lost = {"name": "address failed", "attributes": {"network.peer.address": "::1"}}
    assert [] == names(attempt(phase("tcp", 0.24, lost)))
    assert ["dead_address"] == names(attempt(phase("tcp", 0.25, lost)))
    resent = {"aiohttp.client.tcp.syn_retransmits": 1}
    assert ["syn_retransmissions"] == names(attempt(phase("tcp", 1.0, **resent)))
    assert [] == names(*[attempt(phase("tcp", 0.001))] * 99, attempt(phase("tcp", 1.0, **resent)))


def test_handshakes_of_a_probe() -> None:
    """Of requests one after the other, one handshake is needed; without resumption a finding more."""
    full, resumed = (attempt(phase("tls", 0.01, **{"tls.resumed": each})) for each in (False, True))
    reused = attempt()
    assert [] == names(full)
    assert [] == names(full, resumed, *[reused] * 8)
    assert ["handshakes_per_request"] == names(full, resumed, *[reused] * 7)
    assert ["handshakes_per_request"] == names(*[full] * 10)
    assert ["handshakes_per_request", "resumption_lost"] == names(*[full] * 11)
    assert ["handshakes_per_request"] == names(*[full] * 6, *[resumed] * 5)
    assert ["handshakes_per_request", "resumption_lost"] == names(*[full] * 7, *[resumed] * 4)
