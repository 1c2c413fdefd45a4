"""Drive the hooks by hand, with the objects that the connector drives them with."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from aiohttp import HttpVersion11
from aiohttp.helpers import TimerNoop
from multidict import CIMultiDict
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from yarl import URL

from aiohttp_hardened import DEFAULTS, Phase, TelemetrySettings
from aiohttp_hardened.telemetry import MetricHook, SpanHook
from aiohttp_hardened.timing import Attempt
from aiohttp_hardened.timing._connection import Connection
from aiohttp_hardened.timing._hooks import Hooks
from aiohttp_hardened.timing._request import RequestTiming

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.trace.sampling import Sampler

URL_TEXT = "http://x.test:8080/items"
PEER = ("127.0.0.1", 8080)


class Body:
    """A response's body that ends when it is told to."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._ended = False
        self._callbacks: list[Callable[[], None]] = []

    def is_eof(self) -> bool:
        return self._ended

    def on_eof(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def exception(self) -> BaseException | None:
        return self.failure

    def complete(self) -> None:
        self._ended = True
        for callback in self._callbacks:
            callback()


class Driven:
    """Both hooks on providers of their own, and what these export."""

    def __init__(
        self,
        settings: TelemetrySettings = DEFAULTS.telemetry,
        *,
        sampler: Sampler | None = None,
        tracers: Any = None,
        meters: Any = None,
        views: Any = (),
    ) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader], views=views, shutdown_on_exit=False)
        self.span_hook = SpanHook(settings, tracer_provider=tracers or self.tracers)
        self.metric_hook = MetricHook(settings, meter_provider=meters or self.meters)
        self.hooks = Hooks((self.span_hook, self.metric_hook))

    def close(self) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()

    # -- a request

    def timing(self, trace_request_ctx: object = None) -> RequestTiming:
        return RequestTiming(self.hooks, trace_request_ctx)

    def begin(
        self,
        url: str | URL = URL_TEXT,
        method: str = "GET",
        *,
        headers: Any = None,
        timing: RequestTiming | None = None,
    ) -> Attempt:
        sent = headers if isinstance(headers, CIMultiDict) else CIMultiDict(headers or {})
        timing = self.timing() if timing is None else timing
        return timing.begin(url=URL(url), method=method, headers=sent, timer=TimerNoop())

    def connection(self, attempt: Attempt) -> Connection:
        return Connection(
            self.hooks,
            server_address=attempt.server_address,
            server_port=attempt.server_port,
            scheme=attempt.url.scheme,
            peer_address=PEER[0],
            peer_port=PEER[1],
        )

    def connect(self, attempt: Attempt, connection: Connection | None = None) -> Connection:
        """Give an attempt a connection: a new one, or one that there was."""
        if connection is not None:
            attempt.connected(connection, reused=True)
            return connection
        attempt.start_setup()
        lookup = attempt.enter(Phase.DNS)
        lookup.attributes |= {
            "dns.question.name": attempt.server_address,
            "dns.answers": ("127.0.0.1",),
            "aiohttp.client.dns.source": "lookup",
        }
        attempt.leave(lookup)
        race = attempt.enter(Phase.TCP)
        race.attributes |= {"network.type": "ipv4", "aiohttp.client.tcp.syn_retransmits": 0}
        attempt.leave(race)
        attempt.peer = PEER
        connection = self.connection(attempt)
        attempt.connected(connection, reused=False)
        return connection

    def answer(self, attempt: Attempt, status: int = 200, body: Body | None = None, headers: Any = None) -> None:
        message = SimpleNamespace(code=status, version=HttpVersion11, headers=CIMultiDict(headers or {}))
        attempt.headers_read(message, body)

    def get(self, url: str = URL_TEXT, status: int = 200, **options: Any) -> Attempt:
        """Drive one request over a new connection."""
        attempt = self.begin(url, **options)
        self.connect(attempt)
        body = Body()
        self.answer(attempt, status, body)
        body.complete()
        return attempt

    # -- what came out of it

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def span(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def metrics(self) -> dict[str, Any]:
        data = self.reader.get_metrics_data()
        return {
            metric.name: metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def points(self, name: str) -> list[Any]:
        metric = self.metrics().get(name)
        return [] if metric is None else list(metric.data.data_points)

    def point_of(self, name: str, **attributes: Any) -> Any:
        (point,) = [each for each in self.points(name) if attributes.items() <= dict(each.attributes).items()]
        return point

    def point(self, name: str) -> Any:
        (point,) = self.points(name)
        return point


@contextmanager
def driven(*args: Any, **options: Any) -> Iterator[Driven]:
    """Give hooks on providers that end with the block."""
    made = Driven(*args, **options)
    try:
        yield made
    finally:
        made.close()


def cancelled() -> asyncio.CancelledError:
    return asyncio.CancelledError()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def span_id(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent is not None else None
