from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from multidict import CIMultiDict
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.propagators.textmap import TextMapPropagator, default_getter, default_setter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import TraceFlags, format_span_id, format_trace_id

from aiohttp_hardened import TelemetrySettings
from tests.telemetry._driving import Driven, driven

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import ReadableSpan


class Letter(TextMapPropagator):
    """Write one header of its own."""

    def inject(self, carrier: Any, context: Any = None, setter: Any = default_setter) -> None:
        setter.set(carrier, "x-letter", f"{trace.get_current_span(context).get_span_context().span_id:x}")

    def extract(self, carrier: Any, context: Any = None, getter: Any = default_getter) -> Context:
        raise NotImplementedError

    @property
    def fields(self) -> set[str]:
        return {"X-Letter"}


THEIRS = "00-11111111111111111111111111111111-2222222222222222-01"


@pytest.fixture
def with_baggage() -> Iterator[Context]:
    """The caller's context holds baggage."""
    token = context.attach(baggage.set_baggage("tenant", "ours"))
    yield context.get_current()
    context.detach(token)


def traceparent(span: ReadableSpan) -> str:
    assert span.context is not None
    ids = f"{format_trace_id(span.context.trace_id)}-{format_span_id(span.context.span_id)}"
    return f"00-{ids}-{span.context.trace_flags:02x}"


def test_the_request_span_is_injected(hooked: Driven) -> None:
    """The server sees the span of this attempt as its parent."""
    attempt = hooked.get()
    assert attempt.headers.getall("traceparent") == [traceparent(hooked.span("GET"))]


@pytest.mark.parametrize("name", ["traceparent", "Traceparent", "TRACEPARENT", "tracestate", "TraceState"])
def test_the_callers_trace_context_stays(hooked: Driven, name: str) -> None:
    """Either header of the caller's, in any case, is left alone and nothing is added to it."""
    attempt = hooked.begin(headers={name: THEIRS})
    assert list(attempt.headers.items()) == [(name, THEIRS)]


def test_an_empty_header_of_the_callers_stays(hooked: Driven) -> None:
    """Whoever sends an empty traceparent means it."""
    assert list(hooked.begin(headers={"traceparent": ""}).headers.items()) == [("traceparent", "")]


def test_each_attempt_has_its_own_traceparent(hooked: Driven) -> None:
    """Headers that a middleware sends again carry the new attempt's span, once."""
    timing = hooked.timing()
    headers = CIMultiDict({"Accept": "*/*"})
    first = hooked.begin(headers=headers, timing=timing)
    sent = headers["traceparent"]
    hooked.answer(first)
    hooked.answer(hooked.begin(headers=headers, timing=timing))
    assert len(headers.getall("traceparent")) == 1
    assert headers["traceparent"] != sent
    assert [traceparent(span) for span in hooked.spans] == [sent, headers["traceparent"]]


def test_copied_headers_have_the_new_traceparent(hooked: Driven) -> None:
    """A middleware may copy the headers that it sends again."""
    timing = hooked.timing()
    first = hooked.begin(timing=timing)
    second = hooked.begin(headers=CIMultiDict(first.headers), timing=timing)
    assert second.headers["traceparent"] != first.headers["traceparent"]


def test_what_a_middleware_wrote_between_attempts_stays(hooked: Driven) -> None:
    """Only what we wrote is replaced, whoever owns the headers."""
    timing = hooked.timing()
    headers = CIMultiDict[str]()
    hooked.begin(headers=headers, timing=timing)
    headers["traceparent"] = THEIRS
    hooked.begin(headers=headers, timing=timing)
    assert headers.getall("traceparent") == [THEIRS]


def test_nothing_crosses_origins(hooked: Driven) -> None:
    """A redirect to another origin carries no trace context, not even that of the hop before."""
    timing = hooked.timing()
    first = hooked.begin("http://x.test/", timing=timing)
    assert "traceparent" in first.headers
    second = hooked.begin("http://y.test/", headers=first.headers, timing=timing)
    assert "traceparent" not in second.headers


def test_a_redirect_within_the_origin_propagates(hooked: Driven) -> None:
    """A hop on the same origin is an attempt like any other."""
    timing = hooked.timing()
    hooked.begin("http://x.test/a", timing=timing)
    assert "traceparent" in hooked.begin("http://x.test/b", timing=timing).headers


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("x.test", True),
        ("api.internal.test", True),
        ("API.Internal.Test", True),
        ("internal.test", False),
        ("notx.test", False),
        ("evilinternal.test", False),
    ],
)
def test_only_listed_hosts_see_trace_context(host: str, allowed: bool) -> None:
    """A name on the list is meant exactly; one with a leading dot means what ends with it."""
    with driven(TelemetrySettings(propagate_to=("X.test", ".internal.test"))) as hooked:
        assert ("traceparent" in hooked.begin(f"http://{host}/").headers) is allowed


def test_an_empty_list_means_nobody() -> None:
    """``propagate_to=()`` sends trace context nowhere."""
    with driven(TelemetrySettings(propagate_to=())) as hooked:
        assert not hooked.begin().headers


def test_baggage_travels(hooked: Driven, with_baggage: Context) -> None:
    """Baggage in the caller's context is injected beside the trace context."""
    assert hooked.begin().headers["baggage"] == "tenant=ours"


def test_baggage_is_merged_with_the_callers(hooked: Driven, with_baggage: Context) -> None:
    """One header holds both; the caller's wins where both have a key."""
    attempt = hooked.begin(headers=CIMultiDict([("Baggage", "a=1;p=2"), ("BAGGAGE", "b=3")]))
    assert attempt.headers.getall("baggage") == ["a=1;p=2,b=3,tenant=ours"]
    attempt = hooked.begin(headers={"baggage": "tenant=theirs"})
    assert attempt.headers.getall("baggage") == ["tenant=theirs"]
    assert "traceparent" in attempt.headers


def test_too_much_baggage_stays_the_callers(hooked: Driven, with_baggage: Context) -> None:
    """Baggage that would grow beyond what the W3C allows is left as the caller sent it."""
    theirs = "k=" + "v" * 8185
    assert hooked.begin(headers={"baggage": theirs}).headers.getall("baggage") == [theirs]


def test_no_baggage_beside_the_callers_trace_context(hooked: Driven, with_baggage: Context) -> None:
    """Whoever sets the trace context decides about baggage, too."""
    assert "baggage" not in hooked.begin(headers={"traceparent": THEIRS}).headers


def test_baggage_does_not_cross_origins(hooked: Driven, with_baggage: Context) -> None:
    """Our baggage is taken back with our trace context."""
    timing = hooked.timing()
    first = hooked.begin("http://x.test/", timing=timing)
    assert "baggage" in first.headers
    assert not hooked.begin("http://y.test/", headers=first.headers, timing=timing).headers


def test_an_unsampled_trace_propagates() -> None:
    """The server learns that the trace is not sampled."""
    with driven(sampler=ALWAYS_OFF) as hooked:
        flags = int(hooked.begin().headers["traceparent"][-2:], 16)
        assert not flags & TraceFlags.SAMPLED


def test_the_current_span_is_injected_where_we_make_none() -> None:
    """Without a request span of our own, the caller's span is the server's parent."""
    with driven(TelemetrySettings(request_spans="never")) as hooked:
        with hooked.tracers.get_tracer("app").start_as_current_span("caller"):
            attempt = hooked.begin()
        assert attempt.headers["traceparent"] == traceparent(hooked.span("caller"))


@pytest.fixture
def letter_propagator() -> Iterator[None]:
    """The application's global propagator is one of its own."""
    before = propagate.get_global_textmap()
    propagate.set_global_textmap(Letter())
    yield
    propagate.set_global_textmap(before)


def test_another_propagator_is_respected(hooked: Driven, letter_propagator: None) -> None:
    """The headers of whatever propagator is global are injected, and are the caller's when set."""
    timing = hooked.timing()
    attempt = hooked.begin(timing=timing)
    assert list(attempt.headers) == ["x-letter"]
    first = attempt.headers["x-letter"]
    assert hooked.begin(headers=attempt.headers, timing=timing).headers.getall("x-letter") != [first]
    assert list(hooked.begin(headers={"x-Letter": "theirs"}).headers.items()) == [("x-Letter", "theirs")]
