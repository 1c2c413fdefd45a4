from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from opentelemetry.trace import SpanKind, StatusCode

from aiohttp_hardened import Phase
from aiohttp_hardened.exceptions import DNSLookupError, PhaseTimeoutError
from aiohttp_hardened.timing._phase import PhaseEvent
from tests.telemetry._driving import PEER, Body, Driven, attributes, cancelled, parent_of, span_id

if TYPE_CHECKING:
    pass


def test_phases_are_children_in_order_and_inside(hooked: Driven) -> None:
    """DNS and TCP lie inside the set-up, one after the other, and the set-up inside the request."""
    hooked.get()
    dns, tcp, setup, request, body = hooked.spans
    assert [each.name for each in hooked.spans] == [
        "DNS lookup",
        "TCP connect",
        "connection setup",
        "GET",
        "response body",
    ]
    assert parent_of(dns) == parent_of(tcp) == span_id(setup)
    assert parent_of(setup) == parent_of(body) == span_id(request)
    assert {each.kind for each in (dns, tcp, setup, body)} == {SpanKind.INTERNAL}
    for inner, outer in ((dns, setup), (tcp, setup), (setup, request)):
        assert outer.start_time <= inner.start_time <= inner.end_time <= outer.end_time
    assert dns.end_time <= tcp.start_time
    assert body.start_time == request.end_time


PHASES = [
    (Phase.QUEUE, "wait for connection", {}, {"server.address": "p.test", "server.port": 1}),
    (
        Phase.DNS,
        "DNS lookup",
        {"dns.question.name": "x.test", "dns.answers": ("::1",), "aiohttp.client.dns.source": "lookup"},
        {"dns.question.name": "x.test", "dns.answers": ("::1",), "aiohttp.client.dns.source": "lookup"},
    ),
    (Phase.TCP, "TCP connect", {"network.type": "ipv6"}, {"network.type": "ipv6"}),
    (
        Phase.TUNNEL,
        "CONNECT tunnel",
        {"http.response.status_code": 407},
        {"server.address": "p.test", "server.port": 1, "http.response.status_code": 407},
    ),
    (Phase.TLS, "TLS handshake", {"tls.established": True}, {"server.address": "p.test", "tls.established": True}),
]


@pytest.mark.parametrize(("phase", "name", "seen", "told"), PHASES)
def test_a_phase_tells_what_was_seen(
    hooked: Driven, phase: Phase, name: str, seen: dict[str, Any], told: dict[str, Any]
) -> None:
    """Each phase has its span with its attributes and no status."""
    attempt = hooked.begin()
    attempt.start_setup()
    opened = attempt.enter(phase, "p.test", 1)
    opened.attributes |= seen
    attempt.leave(opened)
    attempt.connected(None, reused=False)
    hooked.answer(attempt)
    span = hooked.span(name)
    assert attributes(span) == told
    assert span.status.status_code is StatusCode.UNSET
    assert parent_of(span) == span_id(hooked.span("GET" if phase is Phase.QUEUE else "connection setup"))


def test_a_set_up_tells_what_was_seen(hooked: Driven) -> None:
    """A set-up names the server, the peer, the scheme and the number of races."""
    attempt = hooked.begin("https://x.test/")
    attempt.proxied = True
    hooked.connect(attempt)
    assert attributes(hooked.span("connection setup")) == {
        "server.address": "x.test",
        "server.port": 443,
        "url.scheme": "https",
        "network.peer.address": PEER[0],
        "network.peer.port": PEER[1],
        "aiohttp.client.connection.attempts": 0,
        "aiohttp.client.proxied": True,
    }


FAILURES = [
    (Phase.QUEUE, PhaseTimeoutError("", phase=Phase.QUEUE, budget=1.0), "timed_out", "queue_timed_out"),
    (Phase.DNS, DNSLookupError("", reason="host_not_found"), "host_not_found", "dns_host_not_found"),
    (Phase.TCP, ConnectionRefusedError(111, ""), "connection_refused", "tcp_connection_refused"),
    (Phase.TUNNEL, PhaseTimeoutError("", phase=Phase.TUNNEL, budget=1.0), "timed_out", "tunnel_timed_out"),
    (Phase.TLS, ConnectionResetError(), "peer_connection_closed", "tls_peer_connection_closed"),
]


@pytest.mark.parametrize(("phase", "exc", "word", "prefixed"), FAILURES)
def test_a_failed_phase_names_its_error(hooked: Driven, phase: Phase, exc: Exception, word: str, prefixed: str) -> None:
    """The phase has the word, the set-up and the request have it with the phase's name."""
    attempt = hooked.begin()
    if phase is not Phase.QUEUE:
        attempt.start_setup()
    attempt.enter(phase)
    attempt.connect_failed(exc)
    *inner, request = hooked.spans
    assert [attributes(span)["error.type"] for span in inner] == ([word, prefixed] if len(inner) == 2 else [word])
    assert attributes(request)["error.type"] == prefixed
    for span in hooked.spans:
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, attributes(span)["error.type"])


@pytest.mark.parametrize("phase", [Phase.QUEUE, Phase.DNS, Phase.TCP, Phase.TUNNEL, Phase.TLS])
def test_a_cancelled_phase_is_not_an_error(hooked: Driven, phase: Phase) -> None:
    """Cancellation ends the phase, its set-up and the request: all unset, all marked."""
    attempt = hooked.begin()
    attempt.start_setup()
    attempt.enter(phase)
    attempt.connect_failed(cancelled())
    assert len(hooked.spans) == 3
    for span in hooked.spans:
        assert span.status.status_code is StatusCode.UNSET
        assert attributes(span)["aiohttp.client.cancelled"] is True
        assert "error.type" not in attributes(span)


def test_moments_are_events(hooked: Driven) -> None:
    """What happened inside a phase is an event at its time."""
    attempt = hooked.begin()
    attempt.start_setup()
    attempt.trust_store_loaded()
    race = attempt.enter(Phase.TCP)
    told = {"network.peer.address": "127.0.0.2", "error.type": "connection_refused"}
    race.events.append(PhaseEvent("address failed", attempt.start_ns + 5, told))
    attempt.leave(race)
    attempt.connected(None, reused=False)
    (event,) = hooked.span("TCP connect").events
    assert (event.name, event.timestamp, dict(event.attributes or {})) == ("address failed", attempt.start_ns + 5, told)
    assert [each.name for each in hooked.span("connection setup").events] == ["trust store loaded"]


# --- the body


def end_body(attempt: Any, body: Body, how: str) -> None:
    if how == "complete":
        body.complete()
    elif how == "cut":
        body.failure = aiohttp.ClientPayloadError()
        attempt.connection_lost(None, dropped=False)
    elif how == "abandoned":
        attempt.released()
    else:
        try:
            raise asyncio.CancelledError  # noqa: TRY301  (as ``released()`` meets it)
        except asyncio.CancelledError:
            attempt.released()


@pytest.mark.parametrize(
    ("how", "error_type", "was_cancelled"),
    [
        ("complete", None, False),
        ("cut", "aiohttp.ClientPayloadError", False),
        ("abandoned", None, False),
        ("cancelled", None, True),
    ],
)
def test_a_body_ends_once_in_its_way(hooked: Driven, how: str, error_type: str | None, was_cancelled: bool) -> None:
    """The body's span says how it ended; only a cut one is an error."""
    attempt = hooked.begin()
    hooked.connect(attempt)
    body = Body()
    hooked.answer(attempt, body=body)
    end_body(attempt, body, how)
    attempt.released()
    attempt.connection_lost(None, dropped=False)
    span = hooked.span("response body")
    wanted: dict[str, Any] = {"aiohttp.client.body.outcome": how}
    if error_type is not None:
        wanted["error.type"] = error_type
    if was_cancelled:
        wanted["aiohttp.client.cancelled"] = True
    assert attributes(span) == wanted
    assert span.status.status_code is (StatusCode.UNSET if error_type is None else StatusCode.ERROR)
    assert parent_of(span) == span_id(hooked.span("GET"))


# --- a lookup that outlives its request


def test_a_background_lookup_is_a_linked_span_of_its_own(hooked: Driven) -> None:
    """It ends after the request, so it is no child of it, in whatever context it ends."""
    attempt = hooked.begin()
    attempt.start_setup()
    lookup = attempt.enter(Phase.DNS)
    lookup.attributes["dns.question.name"] = "x.test"
    attempt.connect_failed(cancelled())
    background = lookup.twin()
    background.attributes["aiohttp.client.dns.source"] = "lookup"
    with hooked.tracers.get_tracer("app").start_as_current_span("somebody else"):
        attempt.report_background(background, None)
    request = hooked.span("GET")
    (child, late) = [span for span in hooked.spans if span.name == "DNS lookup"]
    assert parent_of(child) == span_id(hooked.span("connection setup"))
    assert late.parent is None
    assert [link.context.span_id for link in late.links] == [span_id(request)]
    assert late.end_time >= request.end_time
