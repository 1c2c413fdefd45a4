from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from opentelemetry.metrics import MeterProvider, NoOpMeterProvider

from aiohttp_hardened import Phase, TelemetrySettings
from aiohttp_hardened.exceptions import DNSLookupError, PhaseTimeoutError
from aiohttp_hardened.telemetry import _environment, _names
from aiohttp_hardened.timing._figures import figures
from tests.telemetry._driving import Body, Driven, cancelled, driven

if TYPE_CHECKING:
    pass

SERVER = {"server.address": "x.test", "server.port": 8080}
REQUEST = "http.client.request.duration"
ACTIVE = "http.client.active_requests"


def only(hooked: Driven, name: str) -> tuple[dict[str, Any], int]:
    point = hooked.point(name)
    return dict(point.attributes), point.count


# --- what is recorded


def test_a_request_is_recorded_as_the_conventions_say(hooked: Driven) -> None:
    """Method, server, status and protocol, and the duration of the span."""
    hooked.get()
    attributes, count = only(hooked, REQUEST)
    assert count == 1
    assert attributes == {
        "http.request.method": "GET",
        **SERVER,
        "http.response.status_code": 200,
        "network.protocol.version": "1.1",
    }
    span = hooked.span("GET")
    assert span.start_time is not None
    assert span.end_time is not None
    assert round(hooked.point(REQUEST).sum * 1e9) == span.end_time - span.start_time


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (lambda hooked, attempt: hooked.answer(attempt, 503), {"error.type": "503", "http.response.status_code": 503}),
        (
            lambda _, attempt: attempt.request.failed(aiohttp.ServerDisconnectedError()),
            {"error.type": "aiohttp.ServerDisconnectedError"},
        ),
        (lambda _, attempt: attempt.request.failed(cancelled()), {}),
    ],
)
def test_an_ending_is_recorded_like_its_span(hooked: Driven, end: Any, told: dict[str, Any]) -> None:
    """``error.type`` on the histogram is that of the span; a cancelled request has none."""
    attempt = hooked.begin()
    hooked.connect(attempt)
    end(hooked, attempt)
    attributes, count = only(hooked, REQUEST)
    attributes.pop("network.protocol.version", None)
    assert (attributes, count) == ({"http.request.method": "GET", **SERVER, **told}, 1)


PHASES = [
    (Phase.QUEUE, "http.client.request.time_in_queue", {}, SERVER),
    (Phase.TCP, "aiohttp.client.tcp_connect.duration", {"network.type": "ipv4"}, {**SERVER, "network.type": "ipv4"}),
    (
        Phase.TLS,
        "aiohttp.client.tls_handshake.duration",
        {"tls.protocol.version": "1.3", "tls.resumed": False, "tls.cipher": "x", "tls.established": True},
        {**SERVER, "tls.protocol.version": "1.3", "tls.resumed": False},
    ),
    (
        Phase.DNS,
        "dns.lookup.duration",
        {"dns.question.name": "X.test.", "aiohttp.client.dns.source": "lookup", "dns.answers": ("127.0.0.1",)},
        {"dns.question.name": "x.test"},
    ),
]


@pytest.mark.parametrize(("phase", "name", "seen", "told"), PHASES)
def test_a_phase_is_recorded(
    hooked: Driven, phase: Phase, name: str, seen: dict[str, Any], told: dict[str, Any]
) -> None:
    """Each phase has its histogram, with few attributes."""
    attempt = hooked.begin()
    attempt.start_setup()
    opened = attempt.enter(phase)
    opened.attributes |= seen
    attempt.leave(opened)
    attempt.connected(None, reused=False)
    assert only(hooked, name) == (told, 1)
    assert only(hooked, "aiohttp.client.connection_setup.duration") == ({**SERVER, "url.scheme": "http"}, 1)


@pytest.mark.parametrize(
    ("phase", "name", "exc", "word"),
    [
        (
            Phase.QUEUE,
            "http.client.request.time_in_queue",
            PhaseTimeoutError("", phase=Phase.QUEUE, budget=1.0),
            "timed_out",
        ),
        (Phase.TCP, "aiohttp.client.tcp_connect.duration", ConnectionRefusedError(111, ""), "connection_refused"),
        (Phase.TLS, "aiohttp.client.tls_handshake.duration", ConnectionResetError(), "peer_connection_closed"),
        (Phase.DNS, "dns.lookup.duration", DNSLookupError("", reason="no_data"), "no_data"),
    ],
)
def test_a_failed_phase_is_recorded_with_its_error(
    hooked: Driven, phase: Phase, name: str, exc: Exception, word: str
) -> None:
    """A failure is recorded where a success would be, for the set-up and the request too."""
    attempt = hooked.begin()
    attempt.start_setup()
    opened = attempt.enter(phase)
    opened.attributes |= {"dns.question.name": "x.test", "aiohttp.client.dns.source": "lookup"}
    attempt.connect_failed(exc)
    assert only(hooked, name)[0]["error.type"] == word
    prefixed = f"{phase.value}_{word}"
    assert only(hooked, "aiohttp.client.connection_setup.duration")[0]["error.type"] == prefixed
    assert only(hooked, REQUEST)[0]["error.type"] == prefixed


def test_a_connections_lifetime_is_recorded_when_it_is_lost(hooked: Driven) -> None:
    """The convention's connection duration is a lifetime, under the server it was made for."""
    connection = hooked.get().connection
    assert connection is not None
    assert hooked.points("http.client.connection.duration") == []
    connection.close()
    connection.close()
    assert only(hooked, "http.client.connection.duration") == (SERVER, 1)
    assert hooked.point("http.client.connection.duration").sum == pytest.approx(connection.lifetime)


# --- lookups


@pytest.mark.parametrize("source", ["lookup", "system", "coalesced", "stale"])
def test_only_real_lookups_have_a_duration(hooked: Driven, source: str) -> None:
    """Each answer is counted by its source; only those that asked somebody are timed."""
    attempt = hooked.begin()
    attempt.start_setup()
    lookup = attempt.enter(Phase.DNS)
    lookup.attributes |= {"dns.question.name": "x.test", "aiohttp.client.dns.source": source}
    attempt.connected(None, reused=False)
    assert len(hooked.points("dns.lookup.duration")) == (source in ("lookup", "system"))
    counted = {
        point.attributes["aiohttp.client.dns.source"]: point.value
        for point in hooked.points("aiohttp.client.dns_cache.lookups")
    }
    assert counted == {**dict.fromkeys(("cache", "lookup", "coalesced", "stale", "system"), 0), source: 1}


def test_a_lookup_whose_owner_gave_up_counts_once(hooked: Driven) -> None:
    """The cancelled wait is no lookup; the background record is."""
    attempt = hooked.begin()
    attempt.start_setup()
    lookup = attempt.enter(Phase.DNS)
    lookup.attributes["dns.question.name"] = "x.test"
    attempt.connect_failed(cancelled())
    assert hooked.points("dns.lookup.duration") == []
    background = lookup.twin()
    background.attributes["aiohttp.client.dns.source"] = "lookup"
    attempt.report_background(background, None)
    assert only(hooked, "dns.lookup.duration") == ({"dns.question.name": "x.test"}, 1)


def test_cache_hits_are_counted(hooked: Driven) -> None:
    """An answer from aiohttp's cache is a lookup with source ``cache`` and no duration."""
    hooked.hooks.dns_cache_hit(hooked.begin())
    assert hooked.point_of("aiohttp.client.dns_cache.lookups", **{"aiohttp.client.dns.source": "cache"}).value == 1
    assert hooked.points("dns.lookup.duration") == []


# --- active requests


def test_active_requests_go_up_and_down(hooked: Driven) -> None:
    """A request is active from its start to its headers."""
    attempt, other = hooked.begin(), hooked.begin()
    assert hooked.point(ACTIVE).value == 2
    assert dict(hooked.point(ACTIVE).attributes) == {"http.request.method": "GET", **SERVER}
    hooked.answer(attempt)
    assert hooked.point(ACTIVE).value == 1
    other.connect_failed(cancelled())
    assert hooked.point(ACTIVE).value == 0


def test_active_requests_of_many_threads_add_up(hooked: Driven) -> None:
    """Loops in several threads share the numbers."""

    def requests() -> None:
        for _ in range(300):
            hooked.answer(hooked.begin())

    threads = [threading.Thread(target=requests) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert hooked.point(ACTIVE).value == 0
    assert hooked.point(REQUEST).count == 1200


# --- cardinality


def test_hosts_beyond_the_limit_are_one() -> None:
    """A thousand hosts, fifty texts and an invented method make as many series as were allowed."""
    with driven(TelemetrySettings(max_hosts=3)) as hooked:
        for number in range(1000):
            attempt = hooked.begin(f"http://host{number}.test:{1000 + number}/", method="A" * (1 + number % 50))
            hooked.connect(attempt)
            attempt.request.failed(OSError(f"text {number % 50}"))
        hosts = {point.attributes["server.address"] for point in hooked.points(REQUEST)}
        assert hosts == {"host0.test", "host1.test", "host2.test", "_OTHER"}
        assert {point.attributes["http.request.method"] for point in hooked.points(REQUEST)} == {"_OTHER"}
        for name, metric in hooked.metrics().items():
            if name == _names.METRIC_RELOADS:
                continue  # by trust decision; other tests made theirs
            assert len(metric.data.data_points) <= max(4, len(_names.DNS_SOURCES)), name
        others = [point for point in hooked.points(REQUEST) if point.attributes["server.address"] == "_OTHER"]
        assert "server.port" not in others[0].attributes
        assert hooked.point_of(ACTIVE, **{"server.address": "_OTHER"}).value == 0


def test_ports_of_one_host_are_limited_too() -> None:
    """One host with a port per tenant does not make a series per tenant."""
    with driven(TelemetrySettings(max_hosts=2)) as hooked:
        for port in range(1, 500):
            hooked.answer(hooked.begin(f"http://x.test:{port}/"))
        assert len(hooked.points(REQUEST)) == 21


def test_names_of_lookups_are_limited_with_the_hosts() -> None:
    """``dns.question.name`` counts under the same limit."""
    with driven(TelemetrySettings(max_hosts=1)) as hooked:
        hooked.get("http://x.test/")
        hooked.get("http://y.test/")
        names = [point.attributes["dns.question.name"] for point in hooked.points("dns.lookup.duration")]
        assert names == ["x.test", "_OTHER"]


# --- beside contrib's instrumentation


@pytest.mark.parametrize(
    ("opt_in", "elsewhere", "ours"),
    [
        (None, False, True),
        ("http", False, True),
        (None, True, True),
        ("", True, True),
        ("database", True, True),
        ("http", True, False),
        ("http/dup", True, False),
        ("database, http", True, False),
    ],
)
def test_the_request_histogram_is_recorded_by_one(
    monkeypatch: pytest.MonkeyPatch, opt_in: str | None, elsewhere: bool, ours: bool
) -> None:
    """The stable histogram is left to contrib exactly when contrib is told to record it, and can."""
    ours = ours or not _environment._contrib_has_metrics()
    if opt_in is not None:
        monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opt_in)
    with driven() as hooked:
        timing = hooked.timing()
        timing.traced_elsewhere = elsewhere
        hooked.get(timing=timing)
        assert bool(hooked.points(REQUEST)) is ours
        assert hooked.point(ACTIVE).value == 0
        assert hooked.point("aiohttp.client.connection_setup.duration").count == 1


# --- failures of telemetry


class RaisingHistogram:
    def record(self, *_: Any, **__: Any) -> None:
        raise RuntimeError


class RaisingMeter:
    def create_histogram(self, *_: Any, **__: Any) -> RaisingHistogram:
        return RaisingHistogram()

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class RaisingMeterProvider(MeterProvider):
    def get_meter(self, *_: Any, **__: Any) -> Any:
        return RaisingMeter()


@pytest.mark.usefixtures("hooks_raise")
def test_a_meter_that_raises_costs_its_metrics_only() -> None:
    """What a meter raises is counted; the numbers stay right and the spans are complete."""
    before = figures.telemetry_errors
    with driven(meters=RaisingMeterProvider()) as hooked:
        attempt = hooked.get()
        assert attempt.finished
        assert set(hooked.metric_hook._observed._active.values()) == {0}
        assert [span.name for span in hooked.spans][-2:] == ["GET", "response body"]
    assert figures.telemetry_errors == before + 4


def test_a_provider_that_does_nothing_is_fine() -> None:
    """The API's own no-op provider is a provider."""
    with driven(meters=NoOpMeterProvider()) as hooked:
        body = Body()
        attempt = hooked.begin()
        hooked.connect(attempt)
        hooked.answer(attempt, body=body)
        body.complete()
        assert len(hooked.spans) == 5
