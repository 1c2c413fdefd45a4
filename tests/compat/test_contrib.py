"""Beside opentelemetry-instrumentation-aiohttp-client, whoever comes first and whoever goes first."""

from __future__ import annotations

import inspect
import itertools
import logging
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from aiohttp_hardened import create_session, instrument_session, uninstrument
from aiohttp_hardened._instrumentor import AiohttpHardenedInstrumentor
from aiohttp_hardened.telemetry import MetricHook, SpanHook
from aiohttp_hardened.testing import HTTPServer, refusing_address
from tests.compat._roads import load

if TYPE_CHECKING:
    from collections.abc import Generator

contrib = load("opentelemetry.instrumentation.aiohttp_client")
semconv = load("opentelemetry.instrumentation._semconv")

THEIRS = "opentelemetry.instrumentation.aiohttp_client"
OURS = "aiohttp_hardened"
PHASES = ["TCP connect", "connection setup", "response body"]
DURATION = "http.client.request.duration"


class Beside:
    """Both instrumentations on one pair of providers."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.meters = MeterProvider([self._reader], shutdown_on_exit=False)

    def hooks(self) -> list[Any]:
        return [SpanHook(tracer_provider=self.tracers), MetricHook(meter_provider=self.meters)]

    def begin(self, whose: str) -> None:
        instrumentor = AiohttpHardenedInstrumentor() if whose == OURS else contrib.AioHttpClientInstrumentor()
        instrumentor.instrument(tracer_provider=self.tracers, meter_provider=self.meters)

    def end(self, whose: str) -> None:
        (AiohttpHardenedInstrumentor() if whose == OURS else contrib.AioHttpClientInstrumentor()).uninstrument()

    async def ask(self, session: aiohttp.ClientSession, url: str) -> None:
        """Make a request inside a span of the caller's, which is current before, after, and when it failed."""
        with self.tracers.get_tracer("app").start_as_current_span("caller") as caller:
            try:
                async with session.get(url) as response:
                    assert trace.get_current_span() is caller
                    await response.read()
            except aiohttp.ClientConnectorError:
                pass
            assert trace.get_current_span() is caller

    def told(self) -> tuple[list[str], list[str]]:
        """Return whose CLIENT spans there are, and the phases under them; forget them."""
        spans = self._exporter.get_finished_spans()
        self._exporter.clear()
        requests = [each for each in spans if each.kind is SpanKind.CLIENT]
        phases = [each for each in spans if each.kind is SpanKind.INTERNAL and scope(each) == OURS]
        inside = {identity(each) for each in [*requests, *phases]}
        callers = {identity(each) for each in spans if each.name == "caller"}
        for each in phases:
            assert each.parent is not None
            assert each.parent.span_id in inside, f"{each.name} is no child of a request"
        for each in requests:
            assert each.parent is not None
            assert each.parent.span_id in callers, f"the request of {scope(each)} is no child of the caller"
        return [scope(each) for each in requests], sorted(each.name for each in phases)

    def durations(self) -> dict[str, int]:
        """Return how often each instrumentation recorded `http.client.request.duration`."""
        data = self._reader.get_metrics_data()
        found: dict[str, int] = {}
        for resource in data.resource_metrics if data else ():
            for scoped in resource.scope_metrics:
                for metric in scoped.metrics:
                    points: Any = metric.data.data_points
                    if metric.name == DURATION:
                        found[scoped.scope.name] = sum(point.count for point in points)
        return found


def scope(span: ReadableSpan) -> str:
    assert span.instrumentation_scope is not None
    return span.instrumentation_scope.name


def identity(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


@pytest.fixture(autouse=True)
def nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """End what a test began, and let contrib read its variable anew."""
    monkeypatch.delenv("OTEL_SEMCONV_STABILITY_OPT_IN", raising=False)
    monkeypatch.setattr(semconv._OpenTelemetrySemanticConventionStability, "_initialized", False)
    before = dict(vars(aiohttp.ClientSession))
    yield
    logging.disable(logging.WARNING)  # "Attempting to uninstrument while already uninstrumented"
    AiohttpHardenedInstrumentor().uninstrument()
    contrib.AioHttpClientInstrumentor().uninstrument()
    logging.disable(logging.NOTSET)
    uninstrument()
    assert before == dict(vars(aiohttp.ClientSession))


@pytest.mark.parametrize("order", list(itertools.permutations([OURS, THEIRS, "session"])), ids=">".join)
async def test_every_order_of_construction(order: tuple[str, ...]) -> None:
    """One CLIENT span, contrib's where it traces the session, with the phases that we time as its children."""
    beside = Beside()
    session = None
    async with HTTPServer() as server:
        for each in order:
            if each == "session":
                session = aiohttp.ClientSession()
            else:
                beside.begin(each)
        assert session is not None
        async with session:
            await beside.ask(session, server.url())
    built = order.index("session")
    traced, timed = order.index(THEIRS) < built, order.index(OURS) < built
    assert ([THEIRS] if traced else [OURS] if timed else [], PHASES if timed else []) == beside.told()
    assert ({OURS: 1} if timed else {}) == beside.durations()


@pytest.mark.parametrize("first", [OURS, THEIRS])
@pytest.mark.parametrize("gone", [OURS, THEIRS])
async def test_either_goes_first(first: str, gone: str) -> None:
    """What stays goes on as if it were alone, for sessions from before and after; then nobody tells."""
    beside = Beside()
    stays = THEIRS if gone == OURS else OURS
    beside.begin(first)
    beside.begin(THEIRS if first == OURS else OURS)
    async with HTTPServer() as server, aiohttp.ClientSession() as early:
        beside.end(gone)
        async with aiohttp.ClientSession() as late:
            await beside.ask(late, server.url())
            assert ([stays], PHASES if stays == OURS else []) == beside.told()
            await beside.ask(early, server.url())
            # contrib leaves a session that it traces as it is.
            assert ([THEIRS], PHASES if stays == OURS else []) == beside.told()
        beside.end(stays)
        async with aiohttp.ClientSession() as last:
            await beside.ask(last, server.url())
            assert ([], []) == beside.told()


@pytest.mark.parametrize("late", [False, True])
async def test_a_session_that_exists(late: bool) -> None:
    """`instrument_session()` before or after contrib's `__init__` wrapper saw the session."""
    beside = Beside()
    if not late:
        beside.begin(THEIRS)
    async with HTTPServer() as server, aiohttp.ClientSession() as session:
        if late:
            beside.begin(THEIRS)
        instrument_session(session, hooks=beside.hooks())
        await beside.ask(session, server.url())
    assert ([OURS if late else THEIRS], PHASES) == beside.told()


@pytest.mark.parametrize("whose", ["create_session", "their TraceConfig"])
async def test_other_ways_to_both(whose: str) -> None:
    """A session of `create_session` that contrib sees too, and contrib's `create_trace_config` in a session of ours."""
    beside = Beside()
    options: dict[str, Any] = {}
    if whose == "create_session":
        beside.begin(THEIRS)
    else:
        options["trace_configs"] = [contrib.create_trace_config(tracer_provider=beside.tracers)]
    async with HTTPServer() as server, create_session(hooks=beside.hooks(), **options) as session:
        await beside.ask(session, server.url())
    assert ([THEIRS], PHASES) == beside.told()


async def test_a_request_that_fails() -> None:
    """The failed connect is a child of contrib's span, and the caller's span is current again."""
    beside = Beside()
    beside.begin(THEIRS)
    beside.begin(OURS)
    with refusing_address() as address:
        async with aiohttp.ClientSession() as session:
            await beside.ask(session, f"http://{address.host}:{address.port}/")
    assert ([THEIRS], ["TCP connect", "connection setup"]) == beside.told()


async def test_a_redirect() -> None:
    """There is one span of contrib's for all hops, and the phases of each are under it."""
    beside = Beside()
    beside.begin(THEIRS)
    beside.begin(OURS)
    async with HTTPServer() as server, HTTPServer() as other, aiohttp.ClientSession() as session:
        await beside.ask(session, server.url(f"/redirect?to={other.url()}"))
    requests, phases = beside.told()
    assert [THEIRS] == requests
    assert phases.count("connection setup") == 2


@pytest.mark.parametrize(
    ("opt_in", "whose"), [(None, OURS), ("http", THEIRS), ("http/dup", THEIRS), ("database", OURS), ("gen_ai", OURS)]
)
async def test_one_of_both_records_the_duration(
    opt_in: str | None, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is contrib's exactly when the variable makes it record it, and ours otherwise; alone it is always ours."""
    if "meter_provider" not in inspect.signature(contrib.create_trace_config).parameters:
        whose = OURS  # it has no metrics yet, whatever the variable says
    if opt_in is not None:
        monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opt_in)
    beside = Beside()
    beside.begin(OURS)
    beside.begin(THEIRS)
    async with HTTPServer() as server, aiohttp.ClientSession() as session:
        await beside.ask(session, server.url())
    assert {whose: 1} == beside.durations()
    beside.end(THEIRS)
    async with HTTPServer() as server, aiohttp.ClientSession() as session:
        await beside.ask(session, server.url())
    assert beside.durations()[OURS] == (2 if whose == OURS else 1)
