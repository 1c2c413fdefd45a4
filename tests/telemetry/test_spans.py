from __future__ import annotations

import asyncio
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, Decision, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode

from aiohttp_hardened import Phase, TelemetrySettings
from aiohttp_hardened.exceptions import DNSLookupError, PhaseTimeoutError
from aiohttp_hardened.timing._figures import figures
from aiohttp_hardened.timing._hooks import Hooks
from aiohttp_hardened.timing._phase import PhaseEvent
from tests.telemetry._driving import PEER, Body, Driven, cancelled, driven

if TYPE_CHECKING:
    from collections.abc import Callable

    from opentelemetry.sdk.trace import ReadableSpan


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent is not None else None


# --- the request span


def test_a_request_follows_the_conventions(hooked: Driven) -> None:
    """A request is one CLIENT span with the stable HTTP attributes, and nothing else."""
    hooked.get("http://x.test:8080/items?id=7")
    span = hooked.span("GET")
    assert span.kind is SpanKind.CLIENT
    assert span.parent is None
    assert attributes(span) == {
        "http.request.method": "GET",
        "server.address": "x.test",
        "server.port": 8080,
        "url.full": "http://x.test:8080/items?id=REDACTED",
        "network.peer.address": PEER[0],
        "network.peer.port": PEER[1],
        "http.response.status_code": 200,
        "network.protocol.version": "1.1",
    }
    assert (span.status.status_code, span.status.description) == (StatusCode.UNSET, None)
    assert span.links == ()


def test_the_default_port_is_told(hooked: Driven) -> None:
    """``server.port`` is always there."""
    hooked.answer(hooked.begin("https://x.test/"))
    assert attributes(hooked.span("GET"))["server.port"] == 443


def test_a_sampler_sees_what_the_conventions_want_it_to_see() -> None:
    """Method, server and the redacted URL are there when the sampler decides."""
    seen: list[tuple[str, SpanKind | None, dict[str, Any]]] = []

    class Watching(Sampler):
        def should_sample(self, *args: Any, **_: Any) -> SamplingResult:
            _parent, _trace_id, name, kind, attributes, _links = args
            seen.append((name, kind, dict(attributes)))
            return SamplingResult(Decision.RECORD_AND_SAMPLE, attributes)

        def get_description(self) -> str:
            return "watching"

    with driven(sampler=Watching()) as hooked:
        hooked.begin("http://x.test/?token=1")
    assert seen == [
        (
            "GET",
            SpanKind.CLIENT,
            {
                "http.request.method": "GET",
                "server.address": "x.test",
                "server.port": 80,
                "url.full": "http://x.test/?token=REDACTED",
            },
        )
    ]


def test_the_callers_span_is_the_parent(hooked: Driven) -> None:
    """A request span is a child of whatever is current, which stays current."""
    with hooked.tracers.get_tracer("app").start_as_current_span("caller") as caller:
        attempt = hooked.begin()
        assert trace.get_current_span() is caller
        hooked.connect(attempt)
        body = Body()
        hooked.answer(attempt, body=body)
        body.complete()
        assert trace.get_current_span() is caller
    assert parent_of(hooked.span("GET")) == span_id(hooked.span("caller"))


@pytest.mark.parametrize(
    ("status", "error_type"),
    [(101, None), (200, None), (204, None), (304, None), (400, "400"), (404, "404"), (500, "500"), (599, "599")],
)
def test_status_codes_decide_the_outcome(hooked: Driven, status: int, error_type: str | None) -> None:
    """4xx and 5xx are errors named by their code, without a description; everything else has no status."""
    hooked.answer(hooked.begin(), status)
    span = hooked.span("GET")
    assert attributes(span)["http.response.status_code"] == status
    assert attributes(span).get("error.type") == error_type
    wanted = StatusCode.UNSET if error_type is None else StatusCode.ERROR
    assert (span.status.status_code, span.status.description) == (wanted, None)


@pytest.mark.parametrize(
    ("exc", "error_type"),
    [
        (aiohttp.ServerDisconnectedError(), "aiohttp.ServerDisconnectedError"),
        (TimeoutError(), "TimeoutError"),
        (ValueError("secret"), "ValueError"),
    ],
)
def test_an_exception_is_told_by_its_public_name(hooked: Driven, exc: Exception, error_type: str) -> None:
    """Without a response the exception's class is the error."""
    attempt = hooked.begin()
    hooked.connect(attempt)
    attempt.request.failed(exc)
    span = hooked.span("GET")
    assert attributes(span)["error.type"] == error_type
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, error_type)
    assert "http.response.status_code" not in attributes(span)


def test_a_cancelled_request_is_not_an_error(hooked: Driven) -> None:
    """A caller who gives up leaves status unset and no error, but an attribute."""
    attempt = hooked.begin()
    hooked.connect(attempt)
    attempt.request.failed(cancelled())
    span = hooked.span("GET")
    assert span.status.status_code is StatusCode.UNSET
    assert attributes(span)["aiohttp.client.cancelled"] is True
    assert "error.type" not in attributes(span)


def test_an_unknown_method_is_named_apart(hooked: Driven) -> None:
    """Methods that users invent make neither span names nor label values."""
    hooked.answer(hooked.begin(method="BREW"))
    span = hooked.span("HTTP")
    assert attributes(span)["http.request.method"] == "_OTHER"
    assert attributes(span)["http.request.method_original"] == "BREW"


@pytest.mark.parametrize("kind", [dict, MappingProxyType])
def test_a_template_names_the_span(hooked: Driven, kind: Callable[[dict[str, str]], Any]) -> None:
    """``trace_request_ctx`` may hold a low-cardinality template of the URL."""
    timing = hooked.timing(kind({"url.template": "/items/{id}"}))
    hooked.answer(hooked.begin(timing=timing))
    assert attributes(hooked.span("GET /items/{id}"))["url.template"] == "/items/{id}"


@pytest.mark.parametrize("given", [{}, {"url.template": 7}, "url.template", object()])
def test_other_contexts_are_the_callers(hooked: Driven, given: object) -> None:
    """A ``trace_request_ctx`` of another kind changes nothing."""
    hooked.answer(hooked.begin(timing=hooked.timing(given)))
    assert "url.template" not in attributes(hooked.span("GET"))


def test_each_send_attempt_is_a_span_with_its_number(hooked: Driven) -> None:
    """A retry is a sibling span that says how often the request was sent before."""
    timing = hooked.timing()
    hooked.begin(timing=timing)
    hooked.answer(hooked.begin(timing=timing))
    first, second = hooked.spans
    assert "http.request.resend_count" not in attributes(first)
    assert attributes(second)["http.request.resend_count"] == 1
    assert first.parent is second.parent is None


def test_a_reused_connection_is_linked_to_its_set_up(hooked: Driven) -> None:
    """A request on a connection that was there has no phases, and a link to the span that made it."""
    first = hooked.get()
    second = hooked.begin()
    hooked.connect(second, first.connection)
    hooked.answer(second)
    span = hooked.spans[-1]
    assert [link.context.span_id for link in span.links] == [span_id(hooked.span("connection setup"))]
    assert [each.name for each in hooked.spans].count("connection setup") == 1


# --- phases


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
        attempt.connection_lost()
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
    attempt.connection_lost()
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


# --- sampling


def test_an_unsampled_request_builds_no_phase_span() -> None:
    """Where the head was not sampled, the tracer is asked for one span and no more."""
    asked: list[str] = []

    class Off(Sampler):
        def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
            asked.append(args[2])
            return ALWAYS_OFF.should_sample(*args, **kwargs)

        def get_description(self) -> str:
            return "off"

    with driven(sampler=Off()) as hooked:
        attempt = hooked.get()
        assert hooked.span_hook not in attempt.state
        assert hooked.spans == ()
        assert asked == ["GET"]
        assert hooked.point("http.client.request.duration").count == 1
        assert hooked.point("aiohttp.client.connection_setup.duration").count == 1


def test_a_connection_made_unsampled_is_not_linked_to() -> None:
    """A reused connection whose set-up has no span gives no link."""
    with driven() as hooked, driven(sampler=ALWAYS_OFF) as off:
        connection = off.get().connection
        attempt = hooked.begin()
        hooked.connect(attempt, connection)
        hooked.answer(attempt)
        assert hooked.span("GET").links == ()


# --- somebody else's request span


@pytest.mark.parametrize(
    ("request_spans", "elsewhere", "ours"),
    [
        ("auto", False, True),
        ("auto", True, False),
        ("always", False, True),
        ("always", True, True),
        ("never", False, False),
        ("never", True, False),
    ],
)
def test_there_is_one_client_span(request_spans: Any, elsewhere: bool, ours: bool) -> None:
    """Where another instrumentation makes the request span, phases are children of theirs."""
    with driven(TelemetrySettings(request_spans=request_spans)) as hooked:
        timing = hooked.timing()
        timing.traced_elsewhere = elsewhere
        with hooked.tracers.get_tracer("theirs").start_as_current_span("theirs"):
            attempt = hooked.begin(timing=timing)
            hooked.connect(attempt)
            body = Body()
            hooked.answer(attempt, body=body)
        body.complete()
        names = [span.name for span in hooked.spans]
        assert ("GET" in names) is ours
        parent = span_id(hooked.span("GET" if ours else "theirs"))
        assert parent_of(hooked.span("connection setup")) == parent
        assert parent_of(hooked.span("response body")) == parent


def test_phases_follow_a_remote_parent_that_is_sampled() -> None:
    """A parent that another process records takes children, one that it does not record takes none."""
    with driven(TelemetrySettings(request_spans="never")) as hooked:
        for flags, wanted in ((1, 1), (0, 0)):
            remote = trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(flags))
            with trace.use_span(trace.NonRecordingSpan(remote)):
                hooked.connect(hooked.begin())
            setups = [span for span in hooked.spans if span.name == "connection setup"]
            assert len(setups) == wanted
            assert all(parent_of(span) == 2 for span in setups)
            hooked.exporter.clear()


def test_without_any_span_there_are_no_orphans() -> None:
    """Phases with nothing to belong to are not traced."""
    with driven(TelemetrySettings(request_spans="never")) as hooked:
        hooked.get()
        assert hooked.spans == ()


def test_two_span_hooks_are_siblings() -> None:
    """A second SpanHook does not make its span a child of the first one's."""
    with driven() as one, driven() as two:
        one.hooks = Hooks((one.span_hook, two.span_hook))
        one.get()
        assert [span.parent for span in (one.span("GET"), two.span("GET"))] == [None, None]
        assert parent_of(two.span("connection setup")) == span_id(two.span("GET"))


# --- failures of telemetry


class Raising:
    """A tracer that fails for some names, on start or on end."""

    def __init__(self, tracer: trace.Tracer, *names: str) -> None:
        self._tracer = tracer
        self._names = names

    def start_span(self, name: str, *args: Any, **kwargs: Any) -> Any:
        if name in self._names:
            raise RuntimeError(name)
        return self._tracer.start_span(name, *args, **kwargs)


class RaisingProvider(trace.TracerProvider):
    def __init__(self, provider: trace.TracerProvider, *names: str) -> None:
        self._provider = provider
        self._names = names

    def get_tracer(self, *args: Any, **kwargs: Any) -> Any:
        return Raising(self._provider.get_tracer(*args, **kwargs), *self._names)


@pytest.mark.usefixtures("hooks_raise")
@pytest.mark.parametrize(
    "name", ["GET", "DNS lookup", "TCP connect", "connection setup", "wait for connection", "response body"]
)
def test_a_tracer_that_raises_costs_its_span_only(name: str) -> None:
    """What a tracer raises is counted; other spans end, and metrics are complete."""
    before = figures.telemetry_errors
    with driven() as spare, driven(tracers=RaisingProvider(spare.tracers, name)) as hooked:
        attempt = hooked.begin()
        queue = attempt.enter(Phase.QUEUE)
        attempt.leave(queue)
        hooked.connect(attempt)
        body = Body()
        hooked.answer(attempt, body=body)
        body.complete()
        names = [span.name for span in spare.spans]
        assert name not in names
        if name != "GET":
            assert "GET" in names
        if name in ("DNS lookup", "TCP connect"):
            assert "connection setup" in names
        assert hooked.point("http.client.request.duration").count == 1
        assert hooked.point("http.client.active_requests").value == 0
        assert figures.telemetry_errors == before + 1


@pytest.mark.usefixtures("hooks_raise")
def test_a_processor_that_raises_changes_nothing() -> None:
    """A span processor's failure is contained like a tracer's."""
    before = figures.telemetry_errors
    with driven() as hooked:

        class Failing:
            def on_start(self, span: Any, parent_context: Any = None) -> None:
                """Take it."""

            def _on_ending(self, span: Any) -> None:
                """Take it."""

            def on_end(self, span: Any) -> None:
                raise RuntimeError

            def shutdown(self) -> None:
                """Do nothing."""

        hooked.tracers.add_span_processor(Failing())  # type: ignore[arg-type]
        hooked.get()
        assert hooked.point("http.client.active_requests").value == 0
    assert figures.telemetry_errors > before
