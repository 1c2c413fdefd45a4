"""CPU per request on a reused connection: what each way of looking at it costs.

All contenders run in one process against one server, in interleaved rounds, so that a
change of the machine's speed meets them alike. CPU is the whole process's, exporter
threads included. Each contender first proves that what it is measured for happens.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import statistics
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    MetricExporter,
    MetricExportResult,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import aiohttp_hardened
from aiohttp_hardened import DEFAULTS, create_connector, create_session
from aiohttp_hardened.telemetry import MetricHook, SpanHook
from benchmarks._server import plain_server

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROUNDS = 25
REQUESTS = 200

TIMEOUT = aiohttp.ClientTimeout(
    total=DEFAULTS.timeouts.total, sock_read=DEFAULTS.timeouts.read, ceil_threshold=math.inf
)


class CountingSpanExporter(SpanExporter):
    """Take spans, count them, and forget them."""

    def __init__(self) -> None:
        self.count = 0

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        self.count += len(spans)
        return SpanExportResult.SUCCESS


class CountingMetricExporter(MetricExporter):
    """Take metrics, keep how many durations the request histograms hold, and forget the rest."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def export(self, metrics_data: Any, *_: Any, **__: Any) -> MetricExportResult:
        self.count = sum(
            int(point.count)
            for resource in metrics_data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name in ("http.client.request.duration", "http.client.duration")
            for point in metric.data.data_points
        )
        return MetricExportResult.SUCCESS

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return True

    def shutdown(self, timeout_millis: float = 30_000, **_: Any) -> None:
        """Do nothing."""


@dataclass
class Telemetry:
    """A TracerProvider and a MeterProvider of a contender's own."""

    sampler: Any = None
    spans: CountingSpanExporter = field(default_factory=CountingSpanExporter)

    def __post_init__(self) -> None:
        self.tracers = TracerProvider(sampler=self.sampler) if self.sampler else TracerProvider()
        self.tracers.add_span_processor(BatchSpanProcessor(self.spans))
        self.metrics = CountingMetricExporter()
        reader = PeriodicExportingMetricReader(self.metrics, export_interval_millis=10_000)
        self.meters = MeterProvider(metric_readers=[reader])

    def recorded(self) -> int:
        """How many durations the request histograms hold."""
        self.meters.force_flush()
        return self.metrics.count

    def shutdown(self) -> None:
        """End the exporters' threads."""
        self.tracers.shutdown()
        self.meters.shutdown()


@dataclass
class Contender:
    """One way to make a request."""

    name: str
    session: Callable[[], aiohttp.ClientSession]
    telemetry: Telemetry | None = None
    spans: bool = False
    metrics: bool = False
    microseconds: list[float] = field(default_factory=list)


def _contrib(telemetry: Telemetry) -> aiohttp.TraceConfig:
    os.environ["OTEL_SEMCONV_STABILITY_OPT_IN"] = "http"
    from opentelemetry.instrumentation._semconv import _StabilityMode  # noqa: PLC0415
    from opentelemetry.instrumentation.aiohttp_client import create_trace_config  # noqa: PLC0415

    return create_trace_config(
        tracer_provider=telemetry.tracers,
        meter_provider=telemetry.meters,
        sem_conv_opt_in_mode=_StabilityMode.HTTP,
    )


def _empty_hooks() -> aiohttp.TraceConfig:
    async def nothing(*_: Any) -> None:
        pass

    config = aiohttp.TraceConfig()
    config.on_request_start.append(nothing)
    config.on_request_end.append(nothing)
    config.on_request_exception.append(nothing)
    return config


def _plain(**options: Any) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=TIMEOUT, **options)


def contenders() -> list[Contender]:
    """Return the contenders; the first is the one that ratios refer to."""
    contrib, off, off_spans, on = (
        Telemetry(),
        Telemetry(sampler=ALWAYS_OFF),
        Telemetry(sampler=ALWAYS_OFF),
        Telemetry(),
    )

    def hooks(telemetry: Telemetry, *, metrics: bool = True) -> list[Any]:
        found: list[Any] = [SpanHook(tracer_provider=telemetry.tracers)]
        return [*found, MetricHook(meter_provider=telemetry.meters)] if metrics else found

    return [
        Contender("plain aiohttp, same timeouts", _plain),
        Contender("plain aiohttp, its own timeouts", aiohttp.ClientSession),
        Contender("plain aiohttp, empty hooks", lambda: _plain(trace_configs=[_empty_hooks()])),
        Contender(
            "opentelemetry-instrumentation-aiohttp-client",
            lambda: _plain(trace_configs=[_contrib(contrib)]),
            contrib,
            spans=True,
            metrics=True,
        ),
        Contender("hardened, silent", lambda: create_session(hooks=())),
        Contender(
            "hardened, not sampled, spans only",
            lambda: create_session(hooks=hooks(off_spans, metrics=False)),
            off_spans,
        ),
        Contender("hardened, not sampled, metrics", lambda: create_session(hooks=hooks(off)), off, metrics=True),
        Contender("hardened, everything on", lambda: create_session(hooks=hooks(on)), on, spans=True, metrics=True),
        Contender(
            "hardened, foreign session, everything on",
            lambda: _plain(trace_configs=[aiohttp_hardened.create_trace_config(hooks=hooks(on))]),
            on,
            spans=True,
            metrics=True,
        ),
    ]


async def _requests(session: aiohttp.ClientSession, url: str, count: int) -> None:
    for _ in range(count):
        async with session.get(url) as response:
            await response.read()


async def _prove(contender: Contender, session: aiohttp.ClientSession, url: str) -> None:
    """Assert that the contender does what it is measured for."""
    await _requests(session, url, 20)
    assert session.connector is not None
    telemetry = contender.telemetry
    if telemetry is None:
        return
    telemetry.tracers.force_flush()
    assert bool(telemetry.spans.count) == contender.spans, contender.name
    assert (telemetry.recorded() >= 20) == contender.metrics, contender.name


async def measure(url: str, *, rounds: int = ROUNDS, requests: int = REQUESTS) -> list[Contender]:
    """Measure all contenders in interleaved rounds."""
    competing = contenders()
    async with AsyncExitStack() as stack:
        sessions = [await stack.enter_async_context(each.session()) for each in competing]
        for contender, session in zip(competing, sessions, strict=True):
            await _prove(contender, session, url)
        for number in range(rounds):
            order = list(zip(competing, sessions, strict=True))
            for contender, session in order[number % len(order) :] + order[: number % len(order)]:
                gc.collect()
                start = time.process_time()
                await _requests(session, url, requests)
                contender.microseconds.append((time.process_time() - start) / requests * 1e6)
    for telemetry in {id(each.telemetry): each.telemetry for each in competing if each.telemetry}.values():
        telemetry.shutdown()
    return competing


def build_cost(count: int = 300) -> dict[str, float]:
    """Return microseconds of CPU to build and close a session, plain with a shared connector setting and ours."""

    async def run(make: Callable[[], aiohttp.ClientSession]) -> float:
        async with make():  # what is shared by all is made once
            samples = []
            for _ in range(count):
                start = time.process_time()
                session = make()
                samples.append((time.process_time() - start) * 1e6)
                await session.close()
            return statistics.median(samples)

    async def both() -> dict[str, float]:
        import ssl  # noqa: PLC0415

        shared = ssl.create_default_context()
        return {
            "plain": await run(lambda: aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=shared))),
            "hardened": await run(aiohttp_hardened.create_session),
            "hardened, silent": await run(lambda: aiohttp_hardened.create_session(hooks=())),
            "create_connector": await run(lambda: aiohttp.ClientSession(connector=create_connector())),
        }

    return asyncio.run(both())


def run() -> dict[str, Any]:
    """Measure, print a table, and return the figures."""
    with plain_server() as url:
        competing = asyncio.run(measure(url))
    medians = {each.name: statistics.median(each.microseconds) for each in competing}
    base = medians[competing[0].name]
    print(f"{'CPU per request, reused connection':48} {'µs':>7} {'added':>7} {'ratio':>6}")
    for name, value in medians.items():
        print(f"{name:48} {value:7.1f} {value - base:7.1f} {value / base:6.2f}")
    contrib = medians["opentelemetry-instrumentation-aiohttp-client"] - base
    everything = medians["hardened, everything on"] - base
    print(f"everything on adds {everything / contrib:.2f} x what contrib adds")
    built = build_cost()
    print(f"building a session: {built['hardened'] / built['plain']:.2f} x plain {built}")
    return {"cpu_microseconds": medians, "everything_on_over_contrib": everything / contrib, "build": built}
