from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import Decision, Sampler, SamplingResult
from opentelemetry.trace import SpanKind, StatusCode

from tests.telemetry._driving import PEER, Body, Driven, attributes, cancelled, driven, parent_of, span_id

if TYPE_CHECKING:
    from collections.abc import Callable


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
