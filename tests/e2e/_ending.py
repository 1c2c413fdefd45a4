"""One ending: the sessions that are watched, and the comparison of what was seen with a row."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

from aiohttp_hardened import (
    DNSSettings,
    Phase,
    Settings,
    TimeoutSettings,
    TLSSettings,
    create_connector,
    create_session,
    failed_phase,
)
from aiohttp_hardened.telemetry import MetricHook, SpanHook
from aiohttp_hardened.testing import FixedResolver, PhaseRecorder
from aiohttp_hardened.timing import RequestRecord
from tests.e2e._table import draw, is_cancelled

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from aiohttp_hardened.testing import ThrowawayCA
    from aiohttp_hardened.timing import PhaseRecord
    from tests.e2e._table import Row

BUDGET: Final = 0.2
SHORT: Final = TimeoutSettings(queue=BUDGET, dns=BUDGET, tcp=BUDGET, tls=BUDGET, connect=0.4, read=BUDGET)
"""Every budget runs out soon, and `connect` after the phases that have one of their own."""
SECONDS_TO_SETTLE: Final = 10.0

SPAN_OF: Final = {
    Phase.QUEUE: "wait for connection",
    Phase.SETUP: "connection setup",
    Phase.DNS: "DNS lookup",
    Phase.TCP: "TCP connect",
    Phase.TUNNEL: "CONNECT tunnel",
    Phase.TLS: "TLS handshake",
    Phase.BODY: "response body",
}
PARENT_OF: Final = {
    Phase.QUEUE: Phase.REQUEST,
    Phase.SETUP: Phase.REQUEST,
    Phase.BODY: Phase.REQUEST,
    Phase.DNS: Phase.SETUP,
    Phase.TCP: Phase.SETUP,
    Phase.TUNNEL: Phase.SETUP,
    Phase.TLS: Phase.SETUP,
}
HISTOGRAM_OF: Final = {
    Phase.REQUEST: "http.client.request.duration",
    Phase.QUEUE: "http.client.request.time_in_queue",
    Phase.SETUP: "aiohttp.client.connection_setup.duration",
    Phase.DNS: "dns.lookup.duration",
    Phase.TCP: "aiohttp.client.tcp_connect.duration",
    Phase.TLS: "aiohttp.client.tls_handshake.duration",
}
LOOKUPS_THAT_COUNT: Final = ("lookup", "system")


class Started(SpanProcessor):
    """Keeps every span that starts, and every one that ends."""

    def __init__(self) -> None:
        self.started: list[int] = []
        self.ended: list[ReadableSpan] = []

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.started.append(span.get_span_context().span_id)

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)


class Connections:
    """A hook that counts connections which were made, and which are gone."""

    def __init__(self) -> None:
        self.made = 0
        self.gone = 0

    def __call__(self, record: PhaseRecord) -> None:
        self.made += record.phase is Phase.SETUP and record.error_type is None and not record.cancelled

    def on_connection_closed(self, connection: object) -> None:
        self.gone += 1

    async def all_gone(self) -> None:
        """Wait for the loss of every connection: TLS says goodbye first, and a session does not wait for that."""
        async with asyncio.timeout(SECONDS_TO_SETTLE):
            while self.gone < self.made:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


class Ending:
    """Sessions that are watched by everything there is, and what they need on loopback."""

    def __init__(self, ca: ThrowawayCA) -> None:
        self.ca = ca
        self.stack = AsyncExitStack()
        self.where = ""
        """What ``{where}`` stands for in a row's note."""
        self.proxies: dict[str, str] = {}
        self.settings = Settings(tls=TLSSettings(trust="none", ca_files=(str(ca.ca_file),)))
        self.short = replace(self.settings, timeouts=SHORT)
        """For what runs out; everything else is patient, for machines are slow at times."""
        self.recorder = PhaseRecorder()
        self._connections = Connections()
        self._watch = Started()
        self._tracers = TracerProvider(shutdown_on_exit=False)
        self._tracers.add_span_processor(self._watch)
        self._reader = InMemoryMetricReader()
        self._meters = MeterProvider([self._reader], shutdown_on_exit=False)
        self.hooks: list[Any] = [
            self.recorder,
            self._connections,
            SpanHook(tracer_provider=self._tracers),
            MetricHook(meter_provider=self._meters),
        ]

    # -- what scenarios use

    async def session(self, settings: Settings | None = None, **connector: Any) -> aiohttp.ClientSession:
        """Make a session; every name is 127.0.0.1 unless the settings name a server or a resolver is given."""
        settings = settings or self.settings
        if settings.dns == DNSSettings():
            connector.setdefault("resolver", FixedResolver())
        made = create_session(settings, hooks=self.hooks, connector=create_connector(settings, **connector))
        return await self.stack.enter_async_context(made)

    async def until(self, phase: Phase, *, background: bool = False) -> None:
        """Wait for a record of a phase."""
        async with asyncio.timeout(SECONDS_TO_SETTLE):
            while not any(each.background is background for each in self.recorder.of(phase)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    # -- the comparison

    async def check(self, row: Row) -> None:
        """Let a row happen, and compare everything that was seen with it."""
        exc: BaseException | None = None
        with self._tracers.get_tracer("caller").start_as_current_span("caller") as caller:
            try:
                async with self.stack:
                    await row.scenario(self)
            except (aiohttp.ClientError, TimeoutError) as raised:
                exc = raised
            except asyncio.CancelledError as raised:
                if row.raises is not asyncio.CancelledError:
                    raise
                exc = raised
            assert caller is trace.get_current_span()
            await self._connections.all_gone()
        tree = draw(self._watch.ended, caller.get_span_context())
        assert row.tree == tree, f"\n{tree}\n\nrecords:\n{self.recorder.describe()}"
        self._compare_exception(row, exc)
        self.recorder.check_invariants()
        assert sorted(self._watch.started) == sorted(each.context.span_id for each in self._watch.ended)
        spans = [each for each in self._watch.ended if each.context != caller.get_span_context()]
        self._compare_spans(row, spans)
        self._compare_metrics(spans)

    def _compare_exception(self, row: Row, exc: BaseException | None) -> None:
        assert row.raises is (None if exc is None else type(exc)), repr(exc)
        if exc is None:
            return
        assert row.failed is failed_phase(exc)
        text = "\n".join([str(exc), *getattr(exc, "__notes__", ())])
        for words in row.note:
            assert words.format(where=self.where) in text, text
        if row.cause is not None:
            assert row.cause == (exc.__cause__.phase, exc.__cause__.budget)  # type: ignore[union-attr]
            assert isinstance(exc, TimeoutError)
        if row.reason is not None:
            assert row.reason == exc.os_error.reason  # type: ignore[attr-defined]

    def _compare_spans(self, row: Row, spans: list[ReadableSpan]) -> None:
        assert len(self.recorder.records) == len(spans)
        found = {id(record): _span_of(record, spans) for record in self.recorder.records}
        for record in self.recorder.records:
            _compare_span(record, found[id(record)])
            if record.background:
                continue
            parents = [
                found[id(each)]
                for each in self.recorder.records
                if each.request_id == record.request_id and each.phase is PARENT_OF.get(record.phase)
            ]
            if parents:
                assert parents[0].context.span_id == found[id(record)].parent.span_id
            if isinstance(record, RequestRecord) and record.reused:
                setups = {each.context.span_id for each in spans if each.name == SPAN_OF[Phase.SETUP]}
                assert {link.context.span_id for link in found[id(record)].links} <= setups
        for name, expected in row.attributes.items():
            span = [each for each in spans if each.name == name][-1]
            assert expected == {key: span.attributes.get(key) for key in expected}, dict(span.attributes)
        for name, events in row.events.items():
            span = [each for each in spans if each.name == name][-1]
            assert list(events) == [each.name for each in span.events]

    def _compare_metrics(self, spans: list[ReadableSpan]) -> None:
        """Compare each histogram with the spans of its phase: how many, and which errors."""
        points = self._points()
        for phase, metric in HISTOGRAM_OF.items():
            seen: Counter[str | None] = Counter()
            for point in points.get(metric, ()):
                seen[point.attributes.get("error.type")] += point.count
            expected = Counter(
                span.attributes.get("error.type")
                for span in spans
                if (span.kind is trace.SpanKind.CLIENT if phase is Phase.REQUEST else span.name == SPAN_OF[phase])
                and (phase is not Phase.DNS or span.attributes.get("aiohttp.client.dns.source") in LOOKUPS_THAT_COUNT)
            )
            assert expected == seen, metric
        lives = sum(point.count for point in points.get("http.client.connection.duration", ()))
        assert self._connections.made == self._connections.gone == lives
        assert {0} >= {point.value for point in points.get("http.client.active_requests", ())}
        sources = Counter(each.attributes.get("aiohttp.client.dns.source") for each in spans)
        for point in points["aiohttp.client.dns_cache.lookups"]:
            source = point.attributes["aiohttp.client.dns.source"]
            assert source == "cache" or sources[source] == point.value, source

    def _points(self) -> dict[str, list[Any]]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: list(metric.data.data_points)
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


async def post(session: aiohttp.ClientSession, url: str, data: Any, **options: Any) -> None:
    """Send a body, and read the whole response."""
    async with session.post(url, data=data, **options) as response:
        await response.read()


async def get(session: aiohttp.ClientSession, url: str, **options: Any) -> None:
    """Make a request and read its whole response."""
    async with session.get(url, **options) as response:
        await response.read()


def _name_of(record: PhaseRecord) -> str:
    if isinstance(record, RequestRecord):
        return record.method
    if record.attributes.get("network.protocol.name") == "websocket":
        return "websocket"
    return SPAN_OF[record.phase]


def _span_of(record: PhaseRecord, spans: list[ReadableSpan]) -> ReadableSpan:
    """Find the one span that was written from a record."""
    found = [
        span
        for span in spans
        if (span.name, span.start_time, span.end_time) == (_name_of(record), record.start_ns, record.end_ns)
    ]
    assert len(found) == 1, (record, [(span.name, span.start_time, span.end_time) for span in spans])
    return found[0]


def _compare_span(record: PhaseRecord, span: ReadableSpan) -> None:
    attributes = dict(span.attributes)
    assert record.error_type == attributes.get("error.type")
    status = trace.StatusCode.UNSET if record.error_type is None else trace.StatusCode.ERROR
    assert status is span.status.status_code
    assert record.cancelled == is_cancelled(span)
    assert dict(record.attributes) == {key: attributes.get(key) for key in record.attributes}
    assert [each.name for each in record.events] == [each.name for each in span.events]
    if not isinstance(record, RequestRecord):
        assert span.kind is trace.SpanKind.INTERNAL
        assert record.background == (span.parent is None)
        assert record.background == bool(span.links)
        return
    assert span.kind is trace.SpanKind.CLIENT
    assert {
        "http.request.method": record.method,
        "server.address": record.server_address,
        "server.port": record.server_port,
        "http.response.status_code": record.status_code,
        "network.protocol.version": record.protocol_version,
        "http.request.resend_count": record.resend_count or None,
    }.items() <= {**dict.fromkeys(_OPTIONAL), **attributes}.items()
    assert record.reused == bool(span.links)


_OPTIONAL: Final = ("http.response.status_code", "network.protocol.version", "http.request.resend_count")
