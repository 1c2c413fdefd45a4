from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import context, trace
from opentelemetry.instrumentation.utils import suppress_http_instrumentation, suppress_instrumentation

from aiohttp_hardened import Phase
from tests.telemetry._driving import URL_TEXT, Driven, driven

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PER_REQUEST = ("http.client.request.duration", "aiohttp.client.connection_setup.duration", "dns.lookup.duration")


@contextmanager
def plain_key() -> Iterator[None]:
    token = context.attach(context.set_value("suppress_instrumentation", True))
    yield
    context.detach(token)


SUPPRESSIONS = [suppress_instrumentation, suppress_http_instrumentation, plain_key]


def nothing_told(hooked: Driven) -> bool:
    lookups = sum(point.value for point in hooked.points("aiohttp.client.dns_cache.lookups"))
    active = hooked.points("http.client.active_requests")
    lifetimes = hooked.points("http.client.connection.duration")
    return not (hooked.spans or lookups or active or lifetimes or any(map(hooked.points, PER_REQUEST)))


@pytest.mark.parametrize("suppress", SUPPRESSIONS)
def test_suppression_stops_spans_and_metrics(
    hooked: Driven, suppress: Callable[[], AbstractContextManager[Any]]
) -> None:
    """Nothing is told of a suppressed request, its phases, or the connection that it made."""
    with suppress():
        attempt = hooked.get()
    hooked.hooks.dns_cache_hit(attempt)
    assert attempt.connection is not None
    attempt.connection.close()
    assert nothing_told(hooked)
    assert "traceparent" not in attempt.headers


@pytest.mark.parametrize("suppress", SUPPRESSIONS)
def test_an_outer_spans_propagation_stays(hooked: Driven, suppress: Callable[[], AbstractContextManager[Any]]) -> None:
    """Whoever suppressed us made the span, and its context still reaches the server."""
    with hooked.tracers.get_tracer("outer").start_as_current_span("outer") as outer, suppress():
        attempt = hooked.get()
    assert f"{outer.get_span_context().span_id:016x}" in attempt.headers["traceparent"]
    assert [span.name for span in hooked.spans] == ["outer"]


def test_it_is_decided_at_the_start_for_the_whole_request(hooked: Driven) -> None:
    """What is current at a later attempt or phase changes nothing."""
    told, untold = hooked.timing(), hooked.timing()
    first = hooked.begin(timing=told)
    with suppress_http_instrumentation():
        hooked.answer(hooked.begin(timing=untold))
        hooked.connect(first)
        hooked.answer(first)
        hooked.answer(hooked.begin("http://x.test/told", timing=told))
    hooked.answer(hooked.begin("http://x.test/untold", timing=untold))
    urls = [(span.attributes or {})["url.full"] for span in hooked.spans if span.name == "GET"]
    assert urls == [URL_TEXT, "http://x.test/told"]
    assert sum(point.count for point in hooked.points("http.client.request.duration")) == 2


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, True),
        ({"OTEL_PYTHON_EXCLUDED_URLS": "healthz,ping"}, False),
        ({"OTEL_PYTHON_AIOHTTP_CLIENT_EXCLUDED_URLS": "other, heal.hz"}, False),
        ({"OTEL_PYTHON_EXCLUDED_URLS": "HEALTHZ"}, True),
        ({"OTEL_PYTHON_EXCLUDED_URLS": "healthz", "OTEL_PYTHON_AIOHTTP_CLIENT_EXCLUDED_URLS": "ping"}, True),
        ({"OTEL_PYTHON_EXCLUDED_URLS": "healthz", "OTEL_PYTHON_AIOHTTP_CLIENT_EXCLUDED_URLS": ""}, True),
        ({"OTEL_PYTHON_EXCLUDED_URLS": "^http://x[.]test:8080/healthz$"}, False),
    ],
)
def test_excluded_urls_are_left_alone(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], told: bool) -> None:
    """A URL on the list has no span, no metric, and no header of ours; this library's list hides the general one."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with driven() as hooked:
        with trace.use_span(trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False))):
            attempt = hooked.get("http://x.test:8080/healthz")
        assert bool(hooked.points("http.client.request.duration")) is told
        assert nothing_told(hooked) is not told
        assert ("traceparent" in attempt.headers) is told


def test_a_disabled_sdk_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """``OTEL_SDK_DISABLED`` holds for hooks whatever the provider is."""
    with driven() as running:
        monkeypatch.setenv("OTEL_SDK_DISABLED", " True")
        with driven(tracers=running.tracers, meters=running.meters) as hooked:
            hooked.get()
        assert nothing_told(running)


def test_a_background_lookup_of_a_suppressed_request_is_not_told(hooked: Driven) -> None:
    """What outlives a suppressed request is suppressed, too."""
    with suppress_http_instrumentation():
        attempt = hooked.begin()
    lookup = attempt.enter(Phase.DNS)
    lookup.attributes |= {"dns.question.name": "x.test", "aiohttp.client.dns.source": "lookup"}
    attempt.report_background(lookup, None)
    assert nothing_told(hooked)
